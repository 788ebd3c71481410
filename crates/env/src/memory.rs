//! The allocator of every program: jemalloc, which keeps its pace in a large heap full of holes.
//! Comes with this crate; its options are in jemalloc's manual.
//! It changes no behaviour, only speed and how soon the kernel gets pages back.

use tikv_jemalloc_ctl::{Access, AsName, stats};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Few arenas leave few half-used pages; a thread of the allocator's own gives back what was free for a second.
#[allow(unsafe_code)] // The name under which jemalloc looks for its options.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static OPTIONS: &[u8; 70] = b"narenas:2,background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:0\0";

/// What the allocator has, in bytes. `allocated` is what the program holds; the rest up to `resident` is waste.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heap {
    pub allocated: usize,
    /// Pages with at least one allocation in them.
    pub active: usize,
    /// Of the kernel's memory.
    pub resident: usize,
    /// Addresses kept for later without memory behind them.
    pub retained: usize,
}

/// As of now. `None` where the allocator was built without its counters.
pub fn heap() -> Option<Heap> {
    tikv_jemalloc_ctl::epoch::advance().ok()?;
    Some(Heap {
        allocated: stats::allocated::read().ok()?,
        active: stats::active::read().ok()?,
        resident: stats::resident::read().ok()?,
        retained: stats::retained::read().ok()?,
    })
}

/// The most that this thread has held at once of what it allocated, since it began.
pub fn thread_peak_bytes() -> Option<u64> {
    b"thread.peak.read\0".name().read().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_thread_held_at_once_is_known() {
        let held_twice = || {
            for _ in 0..2 {
                drop(std::hint::black_box(vec![1u8; 8 << 20]));
            }
            super::thread_peak_bytes().unwrap()
        };
        let peak = std::thread::spawn(held_twice).join().unwrap();
        // What the thread had freed of another's before does not count for it.
        assert!((7 << 20..12 << 20).contains(&peak), "{peak}");
    }

    #[test]
    fn what_is_held_is_counted() {
        let before = super::heap().unwrap();
        let held = vec![1u8; 64 << 20];
        let after = super::heap().unwrap();
        // Other tests of this process hold and free some megabytes at the same time.
        assert!(after.allocated > before.allocated + (32 << 20), "{before:?} {after:?} {}", held.len());
        assert!(after.allocated <= after.active && after.active <= after.resident, "{after:?}");
    }

    #[test]
    fn the_options_are_taken() {
        assert_eq!(tikv_jemalloc_ctl::opt::narenas::read(), Ok(2));
        assert_eq!(tikv_jemalloc_ctl::opt::background_thread::read(), Ok(true));
    }
}
