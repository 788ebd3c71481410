// The program of the pause image: holds a pod's namespaces, reaps its orphans, ends on SIGTERM or SIGINT.
// Compiled by build.rs with plain rustc and without any library, because one of these runs per pod.
#![no_std]
#![no_main]

use core::arch::asm;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const EXIT_GROUP: usize = 231;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const RT_SIGPROCMASK: usize = 135;
    pub const WAIT4: usize = 260;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const EXIT_GROUP: usize = 94;
}

const SIGINT: isize = 2;
const SIGTERM: isize = 15;
const SIGCHLD: isize = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;

/// One system call with four arguments.
fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: every pointer passed below lives until the call returns; the kernel keeps none of them.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             lateout("rcx") _, lateout("r11") _);
        #[cfg(target_arch = "aarch64")]
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d);
    }
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    let set: u64 = (1 << (SIGINT - 1)) | (1 << (SIGTERM - 1)) | (1 << (SIGCHLD - 1));
    let set = &raw const set as usize;
    call(number::RT_SIGPROCMASK, SIG_BLOCK, set, 0, 8);
    loop {
        let signal = call(number::RT_SIGTIMEDWAIT, set, 0, 0, 8);
        if signal == SIGINT || signal == SIGTERM {
            call(number::EXIT_GROUP, 0, 0, 0, 0);
        }
        // Several children may have ended behind one signal.
        while call(number::WAIT4, usize::MAX, 0, WNOHANG, 0) > 0 {}
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        call(number::EXIT_GROUP, 1, 0, 0, 0);
    }
}
