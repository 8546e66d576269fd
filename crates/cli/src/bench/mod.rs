//! `causeway bench`: what an operation costs here, beside what it could cost at best.
//!
//! Each row compares two ways of doing the same in one run, in turn, since times of two runs on a
//! machine that does other things as well say little about each other.

mod bodies;
mod duel;
mod locks;
mod machines;
mod net;
mod rivals;
mod segments;
mod sides;

use crate::args::{BenchOptions, Benchmark};
use crate::complain;
use serde_json::{Value, json};

/// Why something could not be measured.
type Error = Box<dyn std::error::Error>;

/// How long to measure.
#[derive(Clone, Copy)]
struct Rounds {
    /// Measurements of each, of which the middle one counts.
    count: u64,
    /// Of how many turns each has, this part is taken.
    divisor: u64,
}

impl Rounds {
    fn new(quick: bool) -> Rounds {
        let (count, divisor) = if quick { (3, 10) } else { (9, 1) };
        Rounds { count, divisor }
    }
}

/// Two ways of doing the same, in nanoseconds each time.
struct Row {
    what: &'static str,
    ours: f64,
    rival: &'static str,
    theirs: f64,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    fn json(&self) -> Value {
        json!({
            "what": self.what,
            "ns": self.ours,
            "rival": self.rival,
            "rival_ns": self.theirs,
            "ratio": self.ratio(),
        })
    }
}

/// Measures and prints; the result is the exit status.
pub fn bench(options: &BenchOptions) -> u8 {
    match measure(options) {
        Ok(table) => {
            print!("{}", table.text(options.json));
            0
        }
        Err(error) => {
            complain(&format!("bench: {error}"));
            1
        }
    }
}

fn measure(options: &BenchOptions) -> Result<Table, Error> {
    let rounds = Rounds::new(options.quick);
    let rows = match options.what {
        Benchmark::Net => return measure_net(options, rounds),
        _ if options.host.is_some() => return Err("only `bench net` has another host".into()),
        Benchmark::Vm if options.serve => machines::serve(),
        _ if options.serve => Err("only `bench vm` and `bench net` have another side".into()),
        Benchmark::Vm => machines::measure(rounds),
        Benchmark::Locks => locks::measure(options.quick),
        Benchmark::Sisci => segments::sisci(rounds),
        Benchmark::Dma => segments::dma(rounds),
    };
    Ok(Table::of(rows?))
}

fn measure_net(options: &BenchOptions, rounds: Rounds) -> Result<Table, Error> {
    match &options.host {
        Some(_) if options.serve => Err("either --serve, or the host where that runs".into()),
        Some(host) => net::measure(host, options.port, rounds),
        None if options.serve => net::serve(options.port).map(|()| Table::default()),
        None => Err("bench net takes the other host, or --serve there".into()),
    }
}

/// What was measured.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    /// Largest packet of the path, in bytes, and what is to be said of it.
    mtu: Option<u32>,
    advice: Option<String>,
}

impl Table {
    fn of(rows: Vec<Row>) -> Table {
        Table {
            rows,
            ..Table::default()
        }
    }

    /// As it is printed; nothing where there is nothing to show.
    fn text(&self, json: bool) -> String {
        if json {
            let rows: Vec<Value> = self.rows.iter().map(Row::json).collect();
            let mut all = json!({ "rows": rows });
            if let Some(mtu) = self.mtu {
                all["path_mtu"] = json!(mtu);
            }
            return format!("{all:#}\n");
        }
        if self.rows.is_empty() {
            return String::new();
        }
        let mut text = table(&self.rows);
        if let Some(advice) = &self.advice {
            text += &format!("\n{advice}\n");
        }
        text
    }
}

fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<44} {:>9}   {:<32} {:>9} {:>7}\n",
        "", "ns", "against", "ns", "ratio"
    );
    for row in rows {
        text += &format!(
            "{:<44} {:>9.1}   {:<32} {:>9.1} {:>7.2}\n",
            row.what,
            row.ours,
            row.rival,
            row.theirs,
            row.ratio()
        );
    }
    text
}

/// The middle one.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(vec![3.0, 100.0, 1.0]) - 3.0).abs() < f64::EPSILON);
    }

    #[test]
    fn rows_stand_under_each_other() {
        let row = Row {
            what: "lock and unlock",
            ours: 20.0,
            rival: "pthread",
            theirs: 40.0,
        };
        let text = table(&[row]);
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(widths[0], widths[1]);
        assert!(text.ends_with("0.50\n"));
    }
}
