//! How long steps take that have a budget, and what they must keep to on a quiet machine.

use lfm3::engine::Model;
use lfm3::error::Result;
use std::time::{Duration, Instant};

/// What each step gets.
pub const BUDGET: Duration = Duration::from_millis(8);
const MOST_P99: Duration = Duration::from_millis(10);
const MOST_WORST: Duration = Duration::from_millis(20);

/// Times of steps.
#[derive(Default)]
pub struct Steps {
    times: Vec<Duration>,
}

impl Steps {
    /// One step of the budget.
    pub fn step(&mut self, model: &Model) -> Result<()> {
        let start = Instant::now();
        model.step(BUDGET)?;
        self.times.push(start.elapsed());
        Ok(())
    }

    /// Steps so far.
    pub fn count(&self) -> usize {
        self.times.len()
    }

    /// Prints the figures; whether they keep to the header's promise, and `made` tokens came of the reply beside.
    pub fn print(mut self, made: usize) -> bool {
        self.times.sort();
        let at = |part: f64| self.times[((self.times.len() - 1) as f64 * part).ceil() as usize];
        let (p50, p99, worst) = (at(0.5), at(0.99), at(1.0));
        println!("step time: p50 {:.2} ms, p99 {:.2} ms, worst {:.2} ms", ms(p50), ms(p99), ms(worst));
        let mut holds = true;
        for (fails, text) in [
            (p99 > MOST_P99, format!("p99 is over {:.0} ms", ms(MOST_P99))),
            (worst > MOST_WORST, format!("the worst step is over {:.0} ms", ms(MOST_WORST))),
            (made == 0, "the other stream made no token meanwhile".to_string()),
        ] {
            if fails {
                println!("FAILED: {text}");
                holds = false;
            }
        }
        holds
    }
}

/// Milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
