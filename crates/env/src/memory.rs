//! How the allocator treats memory that was freed.
//! Called by every program that runs for long; see `mallopt(3)` and `malloc_trim(3)`.
//! Invariant: changes no behaviour, only how soon the kernel gets pages back.

/// Large blocks go back to the kernel when they are freed, however large earlier ones were. Left to itself the
/// allocator raises both limits with the largest block it ever saw, and keeps twice as much for later.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn give_back_early() {
    const LIMIT: i32 = 128 << 10;
    // SAFETY: sets two numbers of the allocator; both are valid.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LIMIT);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LIMIT);
    }
}

#[cfg(not(target_env = "gnu"))]
pub fn give_back_early() {}

/// Gives back free pages between those in use: worth its time only after much was freed.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn give_back_now() {
    // SAFETY: takes the allocator's own locks and touches free memory only.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(target_env = "gnu"))]
pub fn give_back_now() {}
