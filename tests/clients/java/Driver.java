import com.google.gson.Gson;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Drives the official Java client. tests/common/driver.rs tells commands, fields and events. */
final class Driver {
    private static final int BATCH = 32;
    private static final Duration POLL = Duration.ofSeconds(2);
    private static final long PAUSE_AFTER_ERROR_MS = 100;
    private static final long LATER_MS = 1000;

    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Gson GSON = new Gson();
    private static final CountDownLatch STOPPING = new CountDownLatch(1);

    private static Config config;

    private static final class Config {
        String endpoint;
        String topic;
        String group;
        int count;
        long pace_ms;
        boolean tls;
        long start_ms;
        long invisible_ms;
        long hide_ms;
        long hide_first_ms;
        int lines;
        long delay_ms;
        String outcomes;
        String gate;
        String filter;
        boolean sql;
        String fails;
        int failures;
    }

    private record Half(String id, Transaction transaction, String outcome) {
    }

    private interface Call {
        void call() throws Exception;
    }

    private interface Starting<C> {
        C start() throws ClientException;
    }

    private interface Running {
        AutoCloseable run() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        config = GSON.fromJson(words[1], Config.class);
        daemon(() -> {
            while (System.in.read() >= 0) {
                continue;
            }
            STOPPING.countDown();
            return null;
        });
        Map<String, Running> commands = Map.of(
            "send", Driver::send,
            "simple", Driver::simple,
            "push", Driver::push,
            "invisible", Driver::invisible,
            "transact", Driver::transact,
            "recall", Driver::recall);
        AutoCloseable client = commands.get(words[0]).run();
        try {
            client.close();
        } catch (Exception error) {
            noteError("stop", error, Map.of());
        }
        note("done", Map.of());
        System.exit(0);
    }

    private static void daemon(java.util.concurrent.Callable<Void> work) {
        Thread thread = new Thread(() -> {
            try {
                work.call();
            } catch (Exception error) {
                noteError("thread", error, Map.of());
            }
        });
        thread.setDaemon(true);
        thread.start();
    }

    private static boolean stopped() {
        return STOPPING.getCount() == 0;
    }

    private static void pause(long millis) throws InterruptedException {
        STOPPING.await(millis, TimeUnit.MILLISECONDS);
    }

    private static synchronized void note(String event, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("event", event);
        line.put("at_ms", System.currentTimeMillis());
        line.putAll(fields);
        System.out.println(GSON.toJson(line));
        System.out.flush();
    }

    private static void noteError(String what, Throwable error, Map<String, ?> fields) {
        Map<String, Object> line = new LinkedHashMap<>(fields);
        StringBuilder text = new StringBuilder(String.valueOf(error));
        // A client that does not start tells the reason as a cause.
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append("; caused by ").append(cause);
        }
        line.put("what", what);
        line.put("text", text.toString());
        note("error", line);
    }

    /** A client that does not start must not hang its test. */
    private static <C> C start(Starting<C> starting) {
        CountDownLatch started = new CountDownLatch(1);
        daemon(() -> {
            if (!started.await(config.start_ms, TimeUnit.MILLISECONDS)) {
                String text = "not started within " + config.start_ms + " ms";
                note("error", Map.of("what", "start", "text", text));
                Runtime.getRuntime().halt(1);
            }
            return null;
        });
        try {
            C client = starting.start();
            started.countDown();
            note("started", Map.of());
            return client;
        } catch (Throwable error) {
            noteError("start", error, Map.of());
            Runtime.getRuntime().halt(1);
            throw new AssertionError("halted");
        }
    }

    private static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder()
            .setEndpoints(config.endpoint)
            .enableSsl(config.tls)
            .build();
    }

    private static Map<String, FilterExpression> subscription() {
        FilterExpressionType kind =
            config.sql ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Collections.singletonMap(
            config.topic, new FilterExpression(config.filter, kind));
    }

    private static void waitForGate() throws InterruptedException {
        while (!config.gate.isEmpty() && !Files.exists(Path.of(config.gate)) && !stopped()) {
            pause(20);
        }
    }

    private static Message messageOf(int number, long laterMs) {
        byte[] body = new byte[1 + number * 37 % 1024];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) (number * 31 + i * 7);
        }
        MessageBuilder message = PROVIDER.newMessageBuilder()
            .setTopic(config.topic)
            .setBody(body)
            .setTag("tag-" + number % 5)
            .setKeys("key-" + number, "ten-" + number / 10)
            .addProperty("number", String.valueOf(number))
            .addProperty("town", "Z\u00fcrich \u6771\u4eac")
            .addProperty("a=b", " spaced; \"quoted\" \\ ");
        if (config.lines > 0) {
            message.setMessageGroup("line-" + number % config.lines);
        }
        if (config.delay_ms > 0) {
            long due = System.currentTimeMillis() + config.delay_ms + laterMs;
            message.setDeliveryTimestamp(due);
        }
        return message.build();
    }

    private static void noteReceived(MessageView message, long askedMs) {
        ByteBuffer buffer = message.getBody();
        byte[] body = new byte[buffer.remaining()];
        buffer.get(body);
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("id", message.getMessageId().toString());
        line.put("attempt", message.getDeliveryAttempt());
        line.put("asked_ms", askedMs);
        line.put("body", HexFormat.of().formatHex(body));
        line.put("tag", message.getTag().orElse(null));
        line.put("keys", new TreeSet<>(message.getKeys()));
        line.put("properties", message.getProperties());
        // Not in the public interface; a push consumer drops what it finds corrupted.
        line.put("corrupted", false);
        note("received", line);
    }

    private static boolean fails(MessageView message) {
        String number = message.getProperties().get("number");
        int attempt = message.getDeliveryAttempt();
        boolean named = Arrays.asList(config.fails.split(" ")).contains(number);
        boolean failed = named && attempt <= config.failures;
        if (failed) {
            note("failed", Map.of("id", message.getMessageId().toString(), "attempt", attempt));
        }
        return failed;
    }

    private static ProducerBuilder producerBuilder() {
        return PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration())
            .setTopics(config.topic);
    }

    private static void noteSent(SendReceipt receipt, Message message, int number, long from) {
        String id = receipt.getMessageId().toString();
        long due = message.getDeliveryTimestamp().orElse(0L);
        note("sent", Map.of("id", id, "number", number, "from_ms", from, "due_ms", due));
    }

    private static AutoCloseable send() throws Exception {
        Producer producer = start(() -> producerBuilder().build());
        for (int n = 0; !stopped() && (config.count == 0 || n < config.count); n++) {
            long from = System.currentTimeMillis();
            try {
                Message message = messageOf(n, 0);
                noteSent(producer.send(message), message, n, from);
            } catch (Exception error) {
                noteError("send", error, Map.of("number", n, "from_ms", from));
                pause(PAUSE_AFTER_ERROR_MS);
                if (config.lines > 0) {
                    n--;
                }
            }
            pause(config.pace_ms);
        }
        return producer;
    }

    /** Until it is answered OK, as an application would. */
    private static void insist(String what, String id, Call call) throws InterruptedException {
        while (!stopped()) {
            try {
                call.call();
                return;
            } catch (Exception error) {
                noteError(what, error, Map.of("id", id));
                pause(PAUSE_AFTER_ERROR_MS);
            }
        }
    }

    private static TransactionResolution resolution(String outcome) {
        return switch (outcome) {
            case "commit" -> TransactionResolution.COMMIT;
            case "rollback" -> TransactionResolution.ROLLBACK;
            default -> TransactionResolution.UNKNOWN;
        };
    }

    private static AutoCloseable transact() throws Exception {
        Map<String, String> decided = new ConcurrentHashMap<>();
        Producer producer = start(() -> producerBuilder().setTransactionChecker(message -> {
            String id = message.getMessageId().toString();
            String said = decided.getOrDefault(id, "unknown");
            note("asked", Map.of("id", id, "said", said));
            return resolution(said);
        }).build());
        List<Half> halves = new ArrayList<>();
        for (String outcome : config.outcomes.split(" ")) {
            long from = System.currentTimeMillis();
            Transaction transaction = producer.beginTransaction();
            Message message = messageOf(halves.size(), 0);
            SendReceipt receipt = producer.send(message, transaction);
            noteSent(receipt, message, halves.size(), from);
            halves.add(new Half(receipt.getMessageId().toString(), transaction, outcome));
        }
        waitForGate();
        for (Half half : halves) {
            boolean open = half.outcome.equals("open");
            decided.put(half.id, open ? "commit" : half.outcome);
            if (open) {
                continue;
            }
            insist("end", half.id, () -> {
                if (half.outcome.equals("commit")) {
                    half.transaction.commit();
                } else {
                    half.transaction.rollback();
                }
                note("ended", Map.of("id", half.id));
            });
        }
        STOPPING.await();
        return producer;
    }

    private static void recallIt(Producer producer, SendReceipt receipt, int attempt)
        throws ClientException {
        String handle = receipt.getRecallHandle();
        String id = producer.recallMessage(config.topic, handle).getMessageId().toString();
        note("recalled", Map.of("id", id, "attempt", attempt));
    }

    private static AutoCloseable recall() throws Exception {
        Producer producer = start(() -> producerBuilder().build());
        List<SendReceipt> receipts = new ArrayList<>();
        for (int number = 0; number <= config.count; number++) {
            long from = System.currentTimeMillis();
            Message message = messageOf(number, number == config.count ? LATER_MS : 0);
            receipts.add(producer.send(message));
            noteSent(receipts.get(number), message, number, from);
        }
        waitForGate();
        for (SendReceipt receipt : receipts.subList(0, config.count)) {
            String id = receipt.getMessageId().toString();
            insist("recall", id, () -> recallIt(producer, receipt, 1));
            insist("recall", id, () -> recallIt(producer, receipt, 2));
        }
        STOPPING.await();
        SendReceipt last = receipts.get(config.count);
        try {
            recallIt(producer, last, 1);
        } catch (ClientException error) {
            noteError("late", error, Map.of("id", last.getMessageId().toString()));
        }
        return producer;
    }

    private static SimpleConsumer simpleConsumer() {
        return start(() -> PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(config.group)
            .setAwaitDuration(POLL)
            .setSubscriptionExpressions(subscription())
            .build());
    }

    private static List<MessageView> receive(SimpleConsumer consumer) throws InterruptedException {
        long asked = System.currentTimeMillis();
        try {
            List<MessageView> messages =
                consumer.receive(BATCH, Duration.ofMillis(config.invisible_ms));
            messages.forEach(message -> noteReceived(message, asked));
            return messages;
        } catch (Exception error) {
            noteError("receive", error, Map.of());
            pause(PAUSE_AFTER_ERROR_MS);
            return List.of();
        }
    }

    private static boolean acknowledge(SimpleConsumer consumer, MessageView message) {
        String id = message.getMessageId().toString();
        try {
            consumer.ack(message);
            note("acked", Map.of("id", id, "attempt", message.getDeliveryAttempt()));
            return true;
        } catch (Exception error) {
            noteError("ack", error, Map.of("id", id));
            return false;
        }
    }

    private static AutoCloseable simple() throws Exception {
        SimpleConsumer consumer = simpleConsumer();
        while (!stopped()) {
            for (MessageView message : receive(consumer)) {
                if (!fails(message)) {
                    acknowledge(consumer, message);
                }
            }
        }
        return consumer;
    }

    private static void hide(SimpleConsumer consumer, MessageView message) {
        String id = message.getMessageId().toString();
        int attempt = message.getDeliveryAttempt();
        long asked = System.currentTimeMillis();
        try {
            if (config.hide_first_ms > 0) {
                Duration first = Duration.ofMillis(config.hide_first_ms);
                consumer.changeInvisibleDuration(message, first);
            }
            consumer.changeInvisibleDuration(message, Duration.ofMillis(config.hide_ms));
            note("hidden", Map.of("id", id, "attempt", attempt, "asked_ms", asked));
        } catch (Exception error) {
            noteError("hide", error, Map.of("id", id));
        }
    }

    private static AutoCloseable invisible() throws Exception {
        SimpleConsumer consumer = simpleConsumer();
        int acked = 0;
        while (!stopped() && acked < config.count) {
            for (MessageView message : receive(consumer)) {
                if (message.getDeliveryAttempt() == 1) {
                    hide(consumer, message);
                } else if (acknowledge(consumer, message)) {
                    acked++;
                }
            }
        }
        return consumer;
    }

    private static AutoCloseable push() throws Exception {
        AutoCloseable consumer = start(() -> PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(config.group)
            .setSubscriptionExpressions(subscription())
            .setMessageListener(message -> {
                noteReceived(message, System.currentTimeMillis());
                return fails(message) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
        STOPPING.await();
        return consumer;
    }
}
