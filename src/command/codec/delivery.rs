//! The bytes of deliveries. A kind byte stands before each, since one entry mixes them.

use super::{Coded, CommandError, Reader, Writer};
use crate::base::CheckoutId;
use crate::command::{
    Ack, Checkout, Delivery, GiveUp, Grant, Handle, Hold, Release, Renew, Return, Skip, Take, Unit,
};

// Persisted: never change one, never use one again.
const CHECKOUT: u8 = 1;
const ACK: u8 = 2;
const HOLD: u8 = 3;
const RENEW: u8 = 4;
const RELEASE: u8 = 5;
const RETURN: u8 = 6;
const GIVE_UP: u8 = 20;
/// A checkout of a group that was reset in the topic; of any other it is still [`CHECKOUT`].
const CHECKOUT_IN_EPOCH: u8 = 70;

/// Whether it is a delivery of a kind that came with resets.
pub(super) fn has_epoch(delivery: &Delivery) -> bool {
    matches!(delivery, Delivery::Checkout(checkout) if checkout.epoch > 0)
}

impl Coded for Delivery {
    fn write(&self, writer: &mut Writer) {
        match self {
            Self::Checkout(checkout) if checkout.epoch == 0 => writer.kind(CHECKOUT, checkout),
            Self::Checkout(checkout) => {
                writer.kind(CHECKOUT_IN_EPOCH, checkout);
                writer.u32(checkout.epoch);
            }
            Self::Ack(ack) => writer.kind(ACK, ack),
            Self::Hold(hold) => writer.kind(HOLD, hold),
            Self::Renew(renew) => writer.kind(RENEW, renew),
            Self::Release(release) => writer.kind(RELEASE, release),
            Self::Return(back) => writer.kind(RETURN, back),
            Self::GiveUp(given) => writer.kind(GIVE_UP, given),
        }
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        match reader.u8()? {
            CHECKOUT => reader.get().map(Self::Checkout),
            ACK => reader.get().map(Self::Ack),
            HOLD => reader.get().map(Self::Hold),
            RENEW => reader.get().map(Self::Renew),
            RELEASE => reader.get().map(Self::Release),
            RETURN => reader.get().map(Self::Return),
            GIVE_UP => reader.get().map(Self::GiveUp),
            CHECKOUT_IN_EPOCH => {
                let (checkout, epoch) = (reader.get()?, reader.u32()?);
                if epoch == 0 {
                    return Err(CommandError::Kind { what: "the epoch of a checkout", found: 0 });
                }
                Ok(Self::Checkout(Checkout { epoch, ..checkout }))
            }
            found => Err(CommandError::Kind { what: "the kind of a delivery", found }),
        }
    }
}

/// 32 bytes.
impl Coded for Unit {
    fn write(&self, writer: &mut Writer) {
        self.position.write(writer);
        writer.u32(self.size);
        writer.u32(self.tag_hash);
        writer.u64(self.group_hash);
        self.visible.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            position: reader.get()?,
            size: reader.u32()?,
            tag_hash: reader.u32()?,
            group_hash: reader.u64()?,
            visible: reader.get()?,
        })
    }
}

/// 40 bytes.
impl Coded for Handle {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        self.queue.write(writer);
        self.offset.write(writer);
        self.checkout.write(writer);
        writer.u32(self.attempt);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            topic: reader.get()?,
            queue: reader.get()?,
            offset: reader.get()?,
            checkout: reader.get()?,
            attempt: reader.u32()?,
        })
    }
}

impl Coded for Checkout {
    /// Without `epoch`, which only one of the two kinds has.
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.topic.write(writer);
        self.consumer.write(writer);
        writer.option(self.attempt_id.as_ref(), |w, id| w.string(id));
        self.invisible.write(writer);
        writer.bool(self.auto_renew);
        writer.u32(self.subscription_version);
        writer.list(&self.takes, |w, take| take.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            group: reader.get()?,
            topic: reader.get()?,
            consumer: reader.get()?,
            attempt_id: reader.option(Reader::string)?,
            invisible: reader.get()?,
            auto_renew: reader.bool()?,
            subscription_version: reader.u32()?,
            takes: reader.list(Take::read)?,
            epoch: 0,
        })
    }
}

impl Coded for Take {
    fn write(&self, writer: &mut Writer) {
        self.queue.write(writer);
        writer.list(&self.skips, |w, skip| skip.write(w));
        writer.list(&self.grants, |w, grant| grant.write(w));
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self {
            queue: reader.get()?,
            skips: reader.list(Skip::read)?,
            grants: reader.list(Grant::read)?,
        })
    }
}

impl Coded for Skip {
    fn write(&self, writer: &mut Writer) {
        self.from.write(writer);
        self.to.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { from: reader.get()?, to: reader.get()? })
    }
}

impl Coded for Grant {
    fn write(&self, writer: &mut Writer) {
        self.offset.write(writer);
        self.unit.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { offset: reader.get()?, unit: reader.get()? })
    }
}

impl Coded for Ack {
    fn write(&self, writer: &mut Writer) {
        self.handle.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { handle: reader.get()? })
    }
}

impl Coded for Hold {
    fn write(&self, writer: &mut Writer) {
        self.handle.write(writer);
        self.invisible.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { handle: reader.get()?, invisible: reader.get()? })
    }
}

impl Coded for Renew {
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.checkouts, |w, checkout| checkout.write(w));
        self.invisible.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { checkouts: reader.list(CheckoutId::read)?, invisible: reader.get()? })
    }
}

impl Coded for Release {
    fn write(&self, writer: &mut Writer) {
        self.group.write(writer);
        self.consumer.write(writer);
        self.invisible.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { group: reader.get()?, consumer: reader.get()?, invisible: reader.get()? })
    }
}

impl Coded for Return {
    fn write(&self, writer: &mut Writer) {
        writer.list(&self.handles, |w, handle| handle.write(w));
        self.invisible.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { handles: reader.list(Handle::read)?, invisible: reader.get()? })
    }
}

impl Coded for GiveUp {
    fn write(&self, writer: &mut Writer) {
        self.handle.write(writer);
        self.otherwise.write(writer);
    }

    fn read(reader: &mut Reader) -> Result<Self, CommandError> {
        Ok(Self { handle: reader.get()?, otherwise: reader.get()? })
    }
}
