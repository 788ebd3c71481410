//! Takes chance away from whatever does not ask `env` for it: hash maps of a run draw their keys from its seed.
//! Used by `runner`, which gives every run a thread of its own.
//! Threads that were not told a seed get the kernel's randomness.

use std::cell::Cell;

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's randomness follows from `seed`. Call before the first hash map is made.
pub fn fix(seed: u64) {
    STATE.set(Some(seed));
}

/// One step of SplitMix64.
fn draw(state: u64) -> (u64, u64) {
    let next = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (next, mixed ^ (mixed >> 31))
}

/// Stands in for the C library's function, which the standard library looks up as a weak symbol for this purpose.
///
/// # Safety
/// As of `getrandom(2)`: `buffer` points to `length` bytes that may be written.
#[allow(unsafe_code)]
// SAFETY: takes the place of the C function of this name and keeps its contract.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, flags: libc::c_uint) -> isize {
    // A thread that is ending has no state any more.
    let Some(mut state) = STATE.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the caller's own arguments, handed to the kernel as they are.
        return unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) } as isize;
    };
    // SAFETY: the caller lends `length` writable bytes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length) };
    for chunk in bytes.chunks_mut(8) {
        let (next, drawn) = draw(state);
        chunk.copy_from_slice(&drawn.to_le_bytes()[..chunk.len()]);
        state = next;
    }
    STATE.set(Some(state));
    length as isize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_maps_of_equal_seeds_have_equal_order() {
        let order = |seed: u64| {
            let run = std::thread::spawn(move || {
                fix(seed);
                let map: std::collections::HashMap<u32, ()> = (0..100).map(|n| (n, ())).collect();
                map.into_keys().collect::<Vec<_>>()
            });
            run.join().unwrap()
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
    }
}
