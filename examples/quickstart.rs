//! Four ranks as threads of one process; the last one is slow, and no rank waits for it.
//!
//! `cargo run --release --example quickstart`

use std::thread;
use std::time::Duration;

use earlybird::{Config, Fire, World};

const DEADLINE: Duration = Duration::from_secs(10);

fn play(world: &World) -> earlybird::Result<()> {
    let mut sum = world.allreduce::<f32>(&[4]).fire(Fire::quorum(2)).build()?;
    let slow = world.rank() == 3;
    for step in 0..if slow { 2 } else { 6 } {
        thread::sleep(Duration::from_millis(if slow { 35 } else { 10 }));
        sum.contribution()?.fill(1.0);
        sum.arrive()?;
        for outcome in sum.wait(DEADLINE)? {
            let (fresh, carried): (Vec<u32>, Vec<u32>) =
                (outcome.fresh().iter().collect(), outcome.carried().iter().collect());
            println!(
                "rank {} step {step}: round {} has {:?}, fresh {fresh:?}, carried {carried:?}",
                world.rank(),
                outcome.round(),
                outcome.data()[0]
            );
        }
    }
    sum.finish(DEADLINE)
}

fn main() -> earlybird::Result<()> {
    let worlds = World::in_this_process(4, &Config::from_env()?)?;
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || play(&world))).collect();
        ranks.into_iter().try_for_each(|rank| match rank.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
