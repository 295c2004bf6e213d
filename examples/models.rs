//! Four ranks as threads of one process average models in groups; the last one is slow, and no rank waits for it, but in
//! every tenth round.
//!
//! `cargo run --release --example models`

use std::thread;
use std::time::Duration;

use earlybird::{Config, Preset, World};

const DEADLINE: Duration = Duration::from_secs(10);

fn play(world: &World) -> earlybird::Result<()> {
    let mut model = vec![0.0_f32; 4]; // the same on all ranks
    let mut models = world.allreduce(&[4]).preset(Preset::Wagma).memory(&model).build()?;
    // Each rank pulls the weights towards its own number.
    let (goal, slow) = (world.rank() as f32, world.rank() == 3);
    for _step in 0..if slow { 30 } else { 120 } {
        thread::sleep(Duration::from_millis(if slow { 8 } else { 2 }));
        let update = models.contribution()?;
        update.iter_mut().zip(&model).for_each(|(update, weight)| *update = 0.1 * (goal - weight));
        models.arrive()?;
        model.copy_from_slice(models.wait(DEADLINE)?.newest().data());
    }
    println!("rank {}: {} groups moved, and its model is {:.2}", world.rank(), models.stats().groups, model[0]);
    models.finish(DEADLINE)
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
