//! The allocator of every program: jemalloc, which keeps its pace in a large heap full of holes.
//! Comes with this crate; its options are in jemalloc's manual.
//! Invariant: changes no behaviour, only speed and how soon the kernel gets pages back.

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Few arenas leave few half-used pages; a thread of the allocator's own gives back what was free for a second.
#[allow(unsafe_code)] // The name under which jemalloc looks for its options.
#[unsafe(export_name = "_rjem_malloc_conf")]
pub static OPTIONS: &[u8; 70] = b"narenas:2,background_thread:true,dirty_decay_ms:5000,muzzy_decay_ms:0\0";

#[cfg(test)]
mod tests {
    #[test]
    fn the_options_are_taken() {
        assert_eq!(tikv_jemalloc_ctl::opt::narenas::read(), Ok(2));
        assert_eq!(tikv_jemalloc_ctl::opt::background_thread::read(), Ok(true));
    }
}
