//! Calls that do not return are abandoned. Each case is a process of its own, because nothing enters the library afterwards.
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use earlybird_ffi::abandon::{Abandoned, call, earliest_due, expect_by, find, first_abandoned, is_over};

const CASES: [&str; 6] = ["a read", "a spin", "a division", "a callback", "a call that returns", "due"];

#[test]
fn calls_that_do_not_return_are_abandoned() {
    for case in CASES {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "play", "--ignored", "--nocapture"]).env("TEST_CASE", case);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{case}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Waits until a call has been going on for a while, and abandons it.
fn abandon_what_stays() {
    let until = Instant::now() + Duration::from_secs(20);
    let mut seen = Vec::new();
    while Instant::now() < until {
        let now = find();
        if let Some(stays) = now.iter().find(|found| seen.contains(*found)) {
            assert!(stays.abandon(Duration::from_secs(7)), "it stays in {}", stays.name());
            return;
        }
        seen = now;
        thread::sleep(Duration::from_millis(200));
    }
    panic!("no call stays");
}

/// Makes a call on another thread, after many that return; what is around it is as before.
fn abandoned(function: impl FnOnce() -> u64 + Send + 'static) {
    let caller = thread::spawn(move || {
        let held: Vec<u64> = (0..100).collect();
        let (mut sum, mut product) = (0.0, 1.0);
        for number in 0..10_000u64 {
            // SAFETY: nothing has to be dropped.
            let returned = unsafe { call(c"quick", || number + 1) };
            assert_eq!(returned, Ok(number + 1));
            sum += number as f64;
            product *= 1.0001;
        }
        let function = std::mem::ManuallyDrop::new(function);
        // SAFETY: nothing has to be dropped: what `function` needs is given up with it, and it is read once.
        let result = unsafe { call(c"slow", || (std::ptr::read(&*function))()) };
        assert_eq!(result, Err(Abandoned));
        assert!(sum == 49_995_000.0 && (2.71..2.72).contains(&product) && held.iter().sum::<u64>() == 4950);
        // It is left for good.
        // SAFETY: as above.
        assert_eq!(unsafe { call(c"quick", || 1) }, Err(Abandoned));
    });
    abandon_what_stays();
    caller.join().unwrap();
    assert!(is_over());
    assert_eq!(first_abandoned(), Some(("slow", Duration::from_secs(7))));
}

#[test]
#[ignore = "played by the process that the other test starts"]
fn play() {
    let case = std::env::var("TEST_CASE").unwrap();
    match case.as_str() {
        "a read" => abandoned(|| {
            let mut pipe: [c_int; 2] = [0; 2];
            let mut byte = 0u8;
            // SAFETY: an array of two, and one byte.
            unsafe {
                libc::pipe(pipe.as_mut_ptr());
                libc::read(pipe[0], (&raw mut byte).cast(), 1) as u64
            }
        }),
        "a spin" => abandoned(|| {
            loop {
                std::hint::spin_loop();
            }
        }),
        // In the middle of arithmetic, with registers in use.
        "a division" => abandoned(|| {
            let mut numbers = [1.5f64; 16];
            loop {
                numbers.iter_mut().for_each(|number| *number = (*number * 1.7 + 0.3) / 1.9);
                std::hint::black_box(&mut numbers);
            }
        }),
        // The outer call is the one that is abandoned.
        "a callback" => abandoned(|| {
            // SAFETY: nothing has to be dropped.
            let inner = unsafe { call(c"inner", || 3) };
            assert_eq!(inner, Ok(3));
            loop {
                thread::park();
            }
        }),
        "a call that returns" => {
            let caller = thread::spawn(|| {
                // SAFETY: nothing has to be dropped.
                let slow = || unsafe { call(c"slow", || thread::sleep(Duration::from_millis(500))) };
                assert_eq!(slow(), Ok(()));
                thread::sleep(Duration::from_millis(500));
                assert_eq!(slow(), Ok(()), "an earlier call was to be abandoned");
            });
            thread::sleep(Duration::from_millis(200));
            let found = find();
            assert_eq!(found.len(), 1);
            assert!(found[0].is_there() && found[0].name() == "slow");
            thread::sleep(Duration::from_millis(1000));
            assert!(!found[0].is_there());
            assert!(found[0].abandon(Duration::from_secs(1)), "it has been left");
            caller.join().unwrap();
            assert!(!is_over() && find().is_empty());
        }
        _ => {
            assert_eq!(earliest_due(), None);
            let (soon, late) = (Instant::now() + Duration::from_secs(1), Instant::now() + Duration::from_secs(2));
            expect_by(Some(late));
            // A scope would not wait for what the thread drops at its end.
            let other = thread::spawn(move || {
                expect_by(Some(soon));
                let due = earliest_due().unwrap();
                assert!(due <= soon && due + Duration::from_millis(1) > soon);
            });
            other.join().unwrap();
            assert!(earliest_due().unwrap() > soon, "that thread has ended");
            expect_by(None);
            assert_eq!(earliest_due(), None);
        }
    }
}
