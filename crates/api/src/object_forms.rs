//! The parsed and protobuf forms of objects that somebody used lately, so that `Object` seldom makes them twice.
//! Filled by `object`; `client::sweep_object_forms` calls `sweep` in every process that runs for long.
//! What was used in this generation or the last is kept; all else is only bytes, a fraction of it.

use std::{
    any::Any,
    mem,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};

pub(crate) type ParsedObject = Arc<dyn Any + Send + Sync>;

/// A generation ends early once the objects used in it weigh so much as JSON. Parsed they weigh about five times that.
const GENERATION_JSON_BYTES_MAX: usize = 16 << 20;
/// How often `sweep` is to be called: longer than the time between two renewals of a lease, which are the most
/// frequent changes of an idle cluster.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(15);

static RECENT: Recent = Recent { generation: AtomicU64::new(1), generations: Mutex::new(Generations::NONE) };

struct Recent {
    /// The number of the current generation.
    generation: AtomicU64,
    generations: Mutex<Generations>,
}

struct Generations {
    this: Vec<Weak<Slot>>,
    last: Vec<Weak<Slot>>,
    weight: usize,
}

impl Generations {
    const NONE: Self = Self { this: Vec::new(), last: Vec::new(), weight: 0 };
}

/// The place in an `Object` for its other forms.
#[derive(Default)]
pub(crate) struct Slot {
    parsed: RwLock<Option<ParsedObject>>,
    protobuf: RwLock<Option<Bytes>>,
    /// The generation in which it was last used.
    generation: AtomicU64,
}

impl Slot {
    pub fn get(self: &Arc<Self>, weight: usize) -> Option<ParsedObject> {
        let parsed = self.parsed.read().clone()?;
        RECENT.used(self, weight);
        Some(parsed)
    }

    /// Keeps `parsed` unless there is one already; returns the one that is kept.
    pub fn put(self: &Arc<Self>, parsed: ParsedObject, weight: usize) -> ParsedObject {
        let kept = self.parsed.write().get_or_insert(parsed).clone();
        RECENT.used(self, weight);
        kept
    }

    pub fn protobuf(self: &Arc<Self>, weight: usize, make: impl FnOnce() -> Bytes) -> Bytes {
        let known = self.protobuf.read().clone();
        let bytes = known.unwrap_or_else(|| self.protobuf.write().get_or_insert(make()).clone());
        RECENT.used(self, weight);
        bytes
    }

    /// Whether there was something to forget.
    pub fn clear(&self) -> bool {
        let (parsed, protobuf) = (self.parsed.write().take(), self.protobuf.write().take());
        parsed.is_some() || protobuf.is_some()
    }
}

impl Recent {
    fn used(&self, slot: &Arc<Slot>, weight: usize) {
        let now = self.generation.load(Ordering::Relaxed);
        if slot.generation.swap(now, Ordering::Relaxed) == now {
            return;
        }
        let mut generations = self.generations.lock();
        generations.this.push(Arc::downgrade(slot));
        generations.weight += weight;
        if generations.weight > GENERATION_JSON_BYTES_MAX {
            drop(generations);
            self.next_generation();
        }
    }

    /// Returns of how many objects something was forgotten.
    fn next_generation(&self) -> usize {
        let mut generations = self.generations.lock();
        let this = mem::take(&mut generations.this);
        let left = mem::replace(&mut generations.last, this);
        generations.weight = 0;
        let ended = self.generation.fetch_add(1, Ordering::Relaxed);
        drop(generations);
        let unused =
            left.iter().filter_map(Weak::upgrade).filter(|slot| slot.generation.load(Ordering::Relaxed) < ended);
        unused.filter(|slot| slot.clear()).count()
    }
}

/// Forgets the forms that nobody has used since the sweep before the last. Returns of how many objects.
pub fn sweep() -> usize {
    RECENT.next_generation()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent() -> Recent {
        Recent { generation: AtomicU64::new(1), generations: Mutex::new(Generations::NONE) }
    }

    fn filled(recent: &Recent, weight: usize) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        *slot.parsed.write() = Some(Arc::new(7));
        recent.used(&slot, weight);
        slot
    }

    fn held(slot: &Slot) -> bool {
        slot.parsed.read().is_some()
    }

    #[test]
    fn what_is_used_stays() {
        let recent = recent();
        let (used, unused) = (filled(&recent, 1), filled(&recent, 1));
        for generation in 0..5 {
            recent.used(&used, 1);
            recent.used(&used, 1);
            assert_eq!(recent.next_generation(), usize::from(generation == 1), "generation {generation}");
            assert_eq!((held(&used), held(&unused)), (true, generation < 1), "generation {generation}");
        }
        recent.next_generation();
        assert_eq!((recent.next_generation(), held(&used)), (0, false));
    }

    #[test]
    fn a_generation_ends_when_much_was_used() {
        let recent = recent();
        let slots: Vec<_> = (0..9).map(|_| filled(&recent, GENERATION_JSON_BYTES_MAX / 2)).collect();
        let still: Vec<_> = slots.iter().map(|slot| held(slot)).collect();
        assert_eq!(still, [false, false, false, false, false, false, true, true, true]);
    }

    #[test]
    fn the_protobuf_form_goes_with_the_parsed_one() {
        let slot = Arc::new(Slot::default());
        let made = |text: &'static str| slot.protobuf(1, || Bytes::from_static(text.as_bytes()));
        assert_eq!((made("first"), made("second")), ("first".into(), "first".into()));
        assert!(slot.clear() && !slot.clear());
        assert_eq!(made("third"), "third");
    }

    #[test]
    fn objects_that_are_gone_cost_nothing() {
        let recent = recent();
        let parsed: ParsedObject = Arc::new(7);
        let slot = filled(&recent, 1);
        *slot.parsed.write() = Some(parsed.clone());
        drop(slot);
        assert_eq!(Arc::strong_count(&parsed), 1);
        assert_eq!((recent.next_generation(), recent.next_generation()), (0, 0));
    }
}
