// The program of the pause image: holds a pod's namespaces, reaps its orphans, ends on SIGTERM or SIGINT.
// Compiled by build.rs with plain rustc and without any library, because one of these runs per pod.
// Gives up every system call it does not need before anything else: the runtime need not make a filter for it.
#![no_std]
#![no_main]

use core::arch::asm;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const ARCHITECTURE: u32 = 0xc000_003e;
    pub const RT_SIGPROCMASK: usize = 14;
    pub const WAIT4: usize = 61;
    pub const RT_SIGTIMEDWAIT: usize = 128;
    pub const PRCTL: usize = 157;
    pub const RESTART: usize = 219;
    pub const EXIT_GROUP: usize = 231;
    pub const SECCOMP: usize = 317;
}
#[cfg(target_arch = "aarch64")]
mod number {
    pub const ARCHITECTURE: u32 = 0xc000_00b7;
    pub const RT_SIGPROCMASK: usize = 135;
    pub const WAIT4: usize = 260;
    pub const RT_SIGTIMEDWAIT: usize = 137;
    pub const PRCTL: usize = 167;
    pub const RESTART: usize = 128;
    pub const EXIT_GROUP: usize = 94;
    pub const SECCOMP: usize = 277;
}

const SIGINT: isize = 2;
const SIGTERM: isize = 15;
const SIGCHLD: isize = 17;
const SIG_BLOCK: usize = 0;
const WNOHANG: usize = 1;
const PR_SET_NO_NEW_PRIVS: usize = 38;
const SECCOMP_SET_MODE_FILTER: usize = 1;

/// An instruction of the kernel's filter machine: code, where to go on if true and if not, operand.
#[repr(C)]
struct Instruction(u16, u8, u8, u32);

#[repr(C)]
struct Filter {
    length: u16,
    instructions: *const Instruction,
}

const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
/// Answers EPERM.
const REFUSE: u32 = 0x0005_0001;

/// Words 1 and 0 of what is asked about are the architecture and the number of the call.
const ONLY_WHAT_IS_NEEDED: [Instruction; 9] = [
    Instruction(LOAD, 0, 0, 4),
    Instruction(JUMP_IF_EQUAL, 0, 5, number::ARCHITECTURE),
    Instruction(LOAD, 0, 0, 0),
    Instruction(JUMP_IF_EQUAL, 4, 0, number::RT_SIGTIMEDWAIT as u32),
    Instruction(JUMP_IF_EQUAL, 3, 0, number::WAIT4 as u32),
    Instruction(JUMP_IF_EQUAL, 2, 0, number::RESTART as u32),
    Instruction(JUMP_IF_EQUAL, 1, 0, number::EXIT_GROUP as u32),
    Instruction(RETURN, 0, 0, REFUSE),
    Instruction(RETURN, 0, 0, ALLOW),
];

/// One system call with four arguments; a fifth is 0.
fn call(number: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result: isize;
    // SAFETY: every pointer passed below lives until the call returns; the kernel keeps none of them.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             in("r8") 0, lateout("rcx") _, lateout("r11") _);
        #[cfg(target_arch = "aarch64")]
        asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d,
             in("x4") 0);
    }
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    let set: u64 = (1 << (SIGINT - 1)) | (1 << (SIGTERM - 1)) | (1 << (SIGCHLD - 1));
    let set = &raw const set as usize;
    call(number::RT_SIGPROCMASK, SIG_BLOCK, set, 0, 8);
    let instructions = ONLY_WHAT_IS_NEEDED;
    let filter = Filter { length: instructions.len() as u16, instructions: instructions.as_ptr() };
    call(number::PRCTL, PR_SET_NO_NEW_PRIVS, 1, 0, 0);
    call(number::SECCOMP, SECCOMP_SET_MODE_FILTER, 0, &raw const filter as usize, 0);
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
