//! The bits of a collective do not depend on the floating-point state of the threads that compute it: a rounding mode, or tiny
//! numbers that are flushed to zero, on one rank or on all.
#![cfg(earlybird_internals)]
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(unsafe_code)]

mod common;

use std::arch::asm;
use std::time::Duration;

use common::worlds::everywhere;
use earlybird::{Absent, Executor, Fire, Group, Reduce, Scale, World};

const DEADLINE: Duration = Duration::from_secs(60);

/// The usual state of MXCSR; the four rounding modes with and without flushing; flushing of results, and of operands.
const USUAL: u32 = 0x1f80;
const STATES: [u32; 6] = [0x1f80, 0x3f80, 0x5f80, 0x7f80, 0x9f80, 0x1fc0];

fn set(state: u32) {
    // SAFETY: all values are valid for the register. What the library computes in this state is what the test looks at.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const state, options(nostack)) };
}

const LENGTH: usize = 5;

fn fill(to: &mut [f32], rank: u32) {
    // As bits: arithmetic would already differ.
    let values = [1e-38, 1.4e-45, 0.1, -1.1, 3.4e38];
    to.iter_mut()
        .zip(values)
        .for_each(|(to, value): (_, f32)| *to = f32::from_bits(value.to_bits() - rank.min(value.to_bits())));
}

fn bits(data: &[f32]) -> Vec<u32> {
    data.iter().map(|value| value.to_bits()).collect()
}

/// The bits of every kind of collective, in this thread's state.
fn compute(world: &World, executor: Executor) -> Vec<Vec<u32>> {
    let mut found = Vec::new();
    let scales = [Scale::World, Scale::Contributions, Scale::Weights];
    for scale in scales {
        let of = world.allreduce::<f32>(&[LENGTH]).fire(Fire::ALL).scale(scale).executor(executor);
        let mut mean = of.build().unwrap();
        for _ in 0..3 {
            fill(mean.contribution().unwrap(), world.rank());
            if scale == Scale::Weights {
                mean.weigh(world.rank() as u16 + 3).unwrap();
            }
            mean.arrive().unwrap();
            found.push(bits(mean.wait(DEADLINE).unwrap().newest().data()));
        }
        mean.finish(DEADLINE).unwrap();
    }
    let decay = world.allreduce::<f32>(&[LENGTH]).fire(Fire::quorum(world.size())).absent(Absent::Decay(0.9));
    let mut decay = decay.executor(executor).build().unwrap();
    fill(decay.contribution().unwrap(), world.rank());
    decay.arrive().unwrap();
    found.push(bits(decay.wait(DEADLINE).unwrap().newest().data()));
    decay.finish(DEADLINE).unwrap();
    for group in [Group::World, Group::Butterfly(2)] {
        let of = world.allreduce::<f32>(&[LENGTH]).fire(Fire::ALL).group(group).memory(&[1e-38; LENGTH]);
        let mut model = of.executor(executor).build().unwrap();
        fill(model.contribution().unwrap(), world.rank());
        model.arrive().unwrap();
        found.push(bits(model.wait(DEADLINE).unwrap().newest().data()));
        model.finish(DEADLINE).unwrap();
    }
    for reduce in Reduce::EVERY {
        let mut data = [0.0; LENGTH];
        fill(&mut data, world.rank());
        world.all_reduce(&mut data, reduce, DEADLINE).unwrap();
        found.push(bits(&data));
    }
    found
}

#[test]
fn bits_do_not_depend_on_the_state_of_threads() {
    for executor in [Executor::Caller, Executor::Thread] {
        everywhere(3, DEADLINE, |world| {
            let expected = compute(&world, executor);
            for state in STATES {
                for all in [false, true] {
                    if all || world.rank() == 1 {
                        set(state);
                    }
                    let found = compute(&world, executor);
                    set(USUAL);
                    assert_eq!(found, expected, "{state:#x}, on all ranks: {all}");
                }
            }
        });
    }
}
