//! The parsed and protobuf forms of objects that somebody looked at lately, so that `Object` seldom makes them twice.
//! Filled by `object`; every program that runs for long has one task that `tend`s them.
//! Invariant: what was looked at in this turn or the last is kept; all else is only bytes, which are a fraction of it.

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
use env::Env;
use parking_lot::{Mutex, RwLock};

pub(crate) type View = Arc<dyn Any + Send + Sync>;

/// A turn ends early once the objects looked at in it weigh so much as JSON. Parsed they weigh about five times that.
const MOST: usize = 16 << 20;
/// Longer than the time between two renewals of a lease, which are the most frequent changes of an idle cluster.
const TURN: Duration = Duration::from_secs(15);

static RECENT: Recent = Recent { turn: AtomicU64::new(1), generations: Mutex::new(Generations::NONE) };

struct Recent {
    turn: AtomicU64,
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
    view: RwLock<Option<View>>,
    protobuf: RwLock<Option<Bytes>>,
    /// The turn in which it was last looked at.
    turn: AtomicU64,
}

impl Slot {
    pub fn get(self: &Arc<Self>, weight: usize) -> Option<View> {
        let view = self.view.read().clone()?;
        RECENT.used(self, weight);
        Some(view)
    }

    /// Keeps `view` unless there is one already; returns the one that is kept.
    pub fn put(self: &Arc<Self>, view: View, weight: usize) -> View {
        let kept = self.view.write().get_or_insert(view).clone();
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
        let (view, protobuf) = (self.view.write().take(), self.protobuf.write().take());
        view.is_some() || protobuf.is_some()
    }
}

impl Recent {
    fn used(&self, slot: &Arc<Slot>, weight: usize) {
        let now = self.turn.load(Ordering::Relaxed);
        if slot.turn.swap(now, Ordering::Relaxed) == now {
            return;
        }
        let mut generations = self.generations.lock();
        generations.this.push(Arc::downgrade(slot));
        generations.weight += weight;
        if generations.weight > MOST {
            drop(generations);
            self.next_turn();
        }
    }

    /// Returns how many views were forgotten.
    fn next_turn(&self) -> usize {
        let mut generations = self.generations.lock();
        let this = mem::take(&mut generations.this);
        let left = mem::replace(&mut generations.last, this);
        generations.weight = 0;
        let ended = self.turn.fetch_add(1, Ordering::Relaxed);
        drop(generations);
        let unused = left.iter().filter_map(Weak::upgrade).filter(|slot| slot.turn.load(Ordering::Relaxed) < ended);
        unused.filter(|slot| slot.clear()).count()
    }
}

/// Forgets what nobody looks at any more, for ever.
pub async fn tend(env: Env) {
    loop {
        env.sleep(TURN).await;
        RECENT.next_turn();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recent() -> Recent {
        Recent { turn: AtomicU64::new(1), generations: Mutex::new(Generations::NONE) }
    }

    fn filled(recent: &Recent, weight: usize) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        *slot.view.write() = Some(Arc::new(7));
        recent.used(&slot, weight);
        slot
    }

    fn held(slot: &Slot) -> bool {
        slot.view.read().is_some()
    }

    #[test]
    fn what_is_used_stays() {
        let recent = recent();
        let (used, unused) = (filled(&recent, 1), filled(&recent, 1));
        for turn in 0..5 {
            recent.used(&used, 1);
            recent.used(&used, 1);
            assert_eq!(recent.next_turn(), usize::from(turn == 1), "turn {turn}");
            assert_eq!((held(&used), held(&unused)), (true, turn < 1), "turn {turn}");
        }
        recent.next_turn();
        assert_eq!((recent.next_turn(), held(&used)), (0, false));
    }

    #[test]
    fn a_turn_ends_when_much_was_looked_at() {
        let recent = recent();
        let slots: Vec<_> = (0..9).map(|_| filled(&recent, MOST / 2)).collect();
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
        let view: View = Arc::new(7);
        let slot = filled(&recent, 1);
        *slot.view.write() = Some(view.clone());
        drop(slot);
        assert_eq!(Arc::strong_count(&view), 1);
        assert_eq!((recent.next_turn(), recent.next_turn()), (0, 0));
    }
}
