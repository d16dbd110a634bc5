// Drives the official Go client. tests/common/driver.rs tells commands, fields and events.
package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	batch           = 32
	poll            = 2 * time.Second
	pauseAfterError = 100 * time.Millisecond
	later           = time.Second
)

var config struct {
	Endpoint    string `json:"endpoint"`
	Topic       string `json:"topic"`
	Group       string `json:"group"`
	Count       int    `json:"count"`
	PaceMs      int64  `json:"pace_ms"`
	TLS         bool   `json:"tls"`
	StartMs     int64  `json:"start_ms"`
	InvisibleMs int64  `json:"invisible_ms"`
	HideMs      int64  `json:"hide_ms"`
	HideFirstMs int64  `json:"hide_first_ms"`
	Lines       int    `json:"lines"`
	DelayMs     int64  `json:"delay_ms"`
	Outcomes    string `json:"outcomes"`
	Gate        string `json:"gate"`
	Filter      string `json:"filter"`
	SQL         bool   `json:"sql"`
	Fails       string `json:"fails"`
	Failures    int32  `json:"failures"`
}

type fields map[string]any

var (
	stopping = make(chan struct{})
	outLock  sync.Mutex
	out      = json.NewEncoder(os.Stdout)
)

func nowMs() int64 { return time.Now().UnixMilli() }

func millis(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

func note(event string, more fields) {
	line := fields{"event": event, "at_ms": nowMs()}
	for key, value := range more {
		line[key] = value
	}
	outLock.Lock()
	defer outLock.Unlock()
	if err := out.Encode(line); err != nil {
		os.Exit(1)
	}
}

func noteError(what string, err error, more fields) {
	line := fields{"what": what, "text": err.Error()}
	for key, value := range more {
		line[key] = value
	}
	note("error", line)
}

func fail(what string, err error) {
	noteError(what, err, nil)
	os.Exit(1)
}

func stopped() bool {
	select {
	case <-stopping:
		return true
	default:
		return false
	}
}

func pause(length time.Duration) {
	select {
	case <-stopping:
	case <-time.After(length):
	}
}

type client interface {
	Start() error
	GracefulStop() error
}

// The client waits without limit for the server's settings; a test must not.
func start(make func() (client, error)) client {
	timer := time.AfterFunc(millis(config.StartMs), func() {
		fail("start", fmt.Errorf("not started within %d ms", config.StartMs))
	})
	made, err := make()
	if err != nil {
		fail("start", err)
	}
	if err := made.Start(); err != nil {
		fail("start", err)
	}
	timer.Stop()
	note("started", nil)
	return made
}

func clientConfig() *rmq.Config {
	return &rmq.Config{
		Endpoint:      config.Endpoint,
		ConsumerGroup: config.Group,
		Credentials:   &credentials.SessionCredentials{},
	}
}

func waitForGate() {
	for config.Gate != "" && !stopped() {
		if _, err := os.Stat(config.Gate); err == nil {
			return
		}
		pause(20 * time.Millisecond)
	}
}

func messageOf(number int, later time.Duration) *rmq.Message {
	body := make([]byte, 1+number*37%1024)
	for i := range body {
		body[i] = byte(number*31 + i*7)
	}
	message := &rmq.Message{Topic: config.Topic, Body: body}
	message.SetTag(fmt.Sprintf("tag-%d", number%5))
	message.SetKeys(fmt.Sprintf("key-%d", number), fmt.Sprintf("ten-%d", number/10))
	message.AddProperty("number", strconv.Itoa(number))
	message.AddProperty("town", "Zürich 東京")
	message.AddProperty("a=b", " spaced; \"quoted\" \\ ")
	if config.Lines > 0 {
		message.SetMessageGroup(fmt.Sprintf("line-%d", number%config.Lines))
	}
	if config.DelayMs > 0 {
		message.SetDelayTimestamp(time.Now().Add(millis(config.DelayMs) + later))
	}
	return message
}

func noteReceived(message *rmq.MessageView, askedMs int64) {
	note("received", fields{
		"id":         message.GetMessageId(),
		"attempt":    message.GetDeliveryAttempt(),
		"asked_ms":   askedMs,
		"body":       hex.EncodeToString(message.GetBody()),
		"tag":        message.GetTag(),
		"keys":       message.GetKeys(),
		"properties": message.GetProperties(),
		// Not in the public interface; a push consumer drops what it finds corrupted.
		"corrupted": false,
	})
}

func noteSent(receipt *rmq.SendReceipt, message *rmq.Message, number int, from int64) {
	var due int64
	if at := message.GetDeliveryTimestamp(); at != nil {
		due = at.UnixMilli()
	}
	note("sent", fields{"id": receipt.MessageID, "number": number, "from_ms": from, "due_ms": due})
}

func newProducer(options ...rmq.ProducerOption) rmq.Producer {
	options = append(options, rmq.WithTopics(config.Topic))
	return start(func() (client, error) {
		return rmq.NewProducer(clientConfig(), options...)
	}).(rmq.Producer)
}

func send() client {
	producer := newProducer()
	for number := 0; !stopped() && (config.Count == 0 || number < config.Count); number++ {
		message, from := messageOf(number, 0), nowMs()
		receipts, err := producer.Send(context.Background(), message)
		if err != nil {
			noteError("send", err, fields{"number": number, "from_ms": from})
			pause(pauseAfterError)
			if config.Lines > 0 {
				number--
			}
		} else {
			noteSent(receipts[0], message, number, from)
		}
		if config.PaceMs > 0 {
			pause(millis(config.PaceMs))
		}
	}
	return producer
}

// Until it is answered OK, as an application would.
func insist(what string, id string, call func() error) {
	for !stopped() {
		err := call()
		if err == nil {
			return
		}
		noteError(what, err, fields{"id": id})
		pause(pauseAfterError)
	}
}

var resolutions = map[string]rmq.TransactionResolution{
	"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN,
}

type half struct {
	id          string
	transaction rmq.Transaction
	outcome     string
}

func transact() client {
	var decided sync.Map
	checker := &rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		said := "unknown"
		if outcome, ok := decided.Load(message.GetMessageId()); ok {
			said = outcome.(string)
		}
		note("asked", fields{"id": message.GetMessageId(), "said": said})
		return resolutions[said]
	}}
	producer := newProducer(rmq.WithTransactionChecker(checker))
	var halves []half
	for number, outcome := range strings.Fields(config.Outcomes) {
		transaction, message, from := producer.BeginTransaction(), messageOf(number, 0), nowMs()
		receipts, err := producer.SendWithTransaction(context.Background(), message, transaction)
		if err != nil {
			fail("send", err)
		}
		halves = append(halves, half{receipts[0].MessageID, transaction, outcome})
		noteSent(receipts[0], message, number, from)
	}
	waitForGate()
	for _, half := range halves {
		if half.outcome == "open" {
			decided.Store(half.id, "commit")
			continue
		}
		decided.Store(half.id, half.outcome)
		insist("end", half.id, func() error {
			end := half.transaction.Commit
			if half.outcome == "rollback" {
				end = half.transaction.RollBack
			}
			err := end()
			if err == nil {
				note("ended", fields{"id": half.id})
			}
			return err
		})
	}
	<-stopping
	return producer
}

func recall() client {
	producer := newProducer()
	var receipts []*rmq.SendReceipt
	for number := 0; number <= config.Count; number++ {
		message, from := messageOf(number, 0), nowMs()
		if number == config.Count {
			message = messageOf(number, later)
		}
		sent, err := producer.Send(context.Background(), message)
		if err != nil {
			fail("send", err)
		}
		receipts = append(receipts, sent[0])
		noteSent(sent[0], message, number, from)
	}
	waitForGate()
	recallIt := func(receipt *rmq.SendReceipt, attempt int) error {
		id, err := producer.Recall(context.Background(), config.Topic, receipt.RecallHandle)
		if err == nil {
			note("recalled", fields{"id": id, "attempt": attempt})
		}
		return err
	}
	for _, receipt := range receipts[:config.Count] {
		for attempt := 1; attempt <= 2; attempt++ {
			insist("recall", receipt.MessageID, func() error { return recallIt(receipt, attempt) })
		}
	}
	<-stopping
	last := receipts[config.Count]
	if err := recallIt(last, 1); err != nil {
		noteError("late", err, fields{"id": last.MessageID})
	}
	return producer
}

func subscription() map[string]*rmq.FilterExpression {
	kind := rmq.TAG
	if config.SQL {
		kind = rmq.SQL92
	}
	wanted := rmq.NewFilterExpressionWithType(config.Filter, kind)
	return map[string]*rmq.FilterExpression{config.Topic: wanted}
}

func fails(message *rmq.MessageView) bool {
	named := slices.Contains(strings.Fields(config.Fails), message.GetProperties()["number"])
	attempt := message.GetDeliveryAttempt()
	failed := named && attempt <= config.Failures
	if failed {
		note("failed", fields{"id": message.GetMessageId(), "attempt": attempt})
	}
	return failed
}

func simpleConsumer() rmq.SimpleConsumer {
	return start(func() (client, error) {
		return rmq.NewSimpleConsumer(clientConfig(), rmq.WithSimpleAwaitDuration(poll),
			rmq.WithSimpleSubscriptionExpressions(subscription()))
	}).(rmq.SimpleConsumer)
}

func receive(consumer rmq.SimpleConsumer) []*rmq.MessageView {
	asked := nowMs()
	messages, err := consumer.Receive(context.Background(), batch, millis(config.InvisibleMs))
	if err != nil {
		// An empty poll is an error to this client.
		if status, ok := rmq.AsErrRpcStatus(err); !ok || status.Code != messageNotFound {
			noteError("receive", err, nil)
			pause(pauseAfterError)
		}
		return nil
	}
	for _, message := range messages {
		noteReceived(message, asked)
	}
	return messages
}

// apache.rocketmq.v2.Code.MESSAGE_NOT_FOUND
const messageNotFound = 40401

func acknowledge(consumer rmq.SimpleConsumer, message *rmq.MessageView) bool {
	if err := consumer.Ack(context.Background(), message); err != nil {
		noteError("ack", err, fields{"id": message.GetMessageId()})
		return false
	}
	note("acked", fields{"id": message.GetMessageId(), "attempt": message.GetDeliveryAttempt()})
	return true
}

func simple() client {
	consumer := simpleConsumer()
	for !stopped() {
		for _, message := range receive(consumer) {
			if !fails(message) {
				acknowledge(consumer, message)
			}
		}
	}
	return consumer
}

func hide(consumer rmq.SimpleConsumer, message *rmq.MessageView) {
	asked := nowMs()
	for _, length := range []int64{config.HideFirstMs, config.HideMs} {
		if length == 0 {
			continue
		}
		if err := consumer.ChangeInvisibleDuration(message, millis(length)); err != nil {
			noteError("hide", err, fields{"id": message.GetMessageId()})
			return
		}
	}
	note("hidden", fields{
		"id": message.GetMessageId(), "attempt": message.GetDeliveryAttempt(), "asked_ms": asked,
	})
}

func invisible() client {
	consumer := simpleConsumer()
	for acked := 0; !stopped() && acked < config.Count; {
		for _, message := range receive(consumer) {
			if message.GetDeliveryAttempt() == 1 {
				hide(consumer, message)
			} else if acknowledge(consumer, message) {
				acked++
			}
		}
	}
	return consumer
}

func push() client {
	listener := &rmq.FuncMessageListener{Consume: func(message *rmq.MessageView) rmq.ConsumerResult {
		noteReceived(message, nowMs())
		if fails(message) {
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}}
	made := start(func() (client, error) {
		return rmq.NewPushConsumer(clientConfig(), rmq.WithPushAwaitDuration(poll),
			rmq.WithPushSubscriptionExpressions(subscription()),
			rmq.WithPushMessageListener(listener))
	})
	<-stopping
	return made
}

func main() {
	if err := json.Unmarshal([]byte(os.Args[2]), &config); err != nil {
		fail("config", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stopping)
	}()
	rmq.EnableSsl = config.TLS
	commands := map[string]func() client{
		"send": send, "simple": simple, "push": push, "invisible": invisible,
		"transact": transact, "recall": recall,
	}
	if err := commands[os.Args[1]]().GracefulStop(); err != nil {
		noteError("stop", err, nil)
	}
	note("done", nil)
}
