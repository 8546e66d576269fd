//! `causeway bench`: what an operation costs here, beside what it could cost at best.
//!
//! Each row compares two ways of doing the same in one run, in turn, since times of two runs on a
//! machine that does other things as well say little about each other.

mod bodies;
mod duel;
mod far;
mod locks;
mod machines;
mod net;
mod rivals;
mod segments;
mod sides;

use crate::args::{BenchOptions, Benchmark};
use crate::complain;
use serde_json::{Value, json};
use std::borrow::Cow;

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
    what: Cow<'static, str>,
    ours: f64,
    rival: Cow<'static, str>,
    theirs: f64,
    /// The ratio that is aimed at, or less.
    held_to: Option<f64>,
    /// Processors without which its threads keep each other from running, and the ratio says
    /// nothing.
    processors: Option<usize>,
    moved: Option<Moved>,
}

/// What one operation moved.
#[derive(Clone, Copy)]
struct Moved {
    /// Bytes that it was given.
    bytes: usize,
    /// Bytes that the other side has found to be there afterwards.
    arrived: u64,
}

impl Row {
    fn new(
        what: impl Into<Cow<'static, str>>,
        ours: f64,
        rival: impl Into<Cow<'static, str>>,
        theirs: f64,
    ) -> Row {
        Row {
            what: what.into(),
            ours,
            rival: rival.into(),
            theirs,
            held_to: None,
            processors: None,
            moved: None,
        }
    }

    fn ratio(&self) -> f64 {
        self.ours / self.theirs
    }

    fn json(&self) -> Value {
        let mut row = json!({
            "what": self.what,
            "ns": self.ours,
            "rival": self.rival,
            "rival_ns": self.theirs,
            "ratio": self.ratio(),
        });
        if let Some(held_to) = self.held_to {
            row["held_to"] = json!(held_to);
        }
        if let Some(processors) = self.processors {
            row["processors"] = json!(processors);
        }
        if let Some(Moved { bytes, arrived }) = self.moved {
            row["bytes"] = json!(bytes);
            row["arrived"] = json!(arrived);
        }
        row
    }
}

/// Measures and prints; the result is the exit status.
pub fn bench(options: &BenchOptions) -> u8 {
    match measure(options) {
        Ok(table) => crate::say(&table.text(options.json)),
        Err(error) => {
            complain(&format!("bench: {error}"));
            1
        }
    }
}

fn measure(options: &BenchOptions) -> Result<Table, Error> {
    if options.node.is_some() && options.what != Benchmark::Sisci {
        return Err("only `bench sisci` has another node".into());
    }
    let rounds = Rounds::new(options.quick);
    let rows = match options.what {
        Benchmark::Net => return measure_net(options, rounds),
        Benchmark::Sisci if options.node.is_some() || options.serve => {
            return measure_far(options, rounds);
        }
        _ if options.host.is_some() => return Err("only `bench net` has another host".into()),
        Benchmark::Vm if options.serve => machines::serve(),
        _ if options.serve => Err("only bench vm, net and sisci have another side".into()),
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

fn measure_far(options: &BenchOptions, rounds: Rounds) -> Result<Table, Error> {
    match options.node {
        _ if options.host.is_some() => Err("bench sisci takes --node, not a host".into()),
        Some(_) if options.serve => Err("either --serve, or the node where that runs".into()),
        Some(node) => far::measure(node, options.port, rounds),
        None => far::serve(options.port).map(|()| Table::default()),
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
    let aimed = rows.iter().any(|row| row.held_to.is_some());
    let mut text = format!(
        "{:<44} {:>12}   {:<32} {:>12} {:>7}",
        "", "ns", "against", "ns", "ratio"
    );
    text += if aimed { "  held to\n" } else { "\n" };
    for row in rows {
        text += &format!(
            "{:<44} {:>12.1}   {:<32} {:>12.1} {:>7.2}",
            row.what,
            row.ours,
            row.rival,
            row.theirs,
            row.ratio()
        );
        if aimed {
            let held_to = row.held_to.map(|most| format!("{most:.2}"));
            text += &format!(" {:>8}", held_to.as_deref().unwrap_or("-"));
        }
        text.push('\n');
    }
    text
}

/// The middle one.
/// The medians of two figures that are measured in turn, so many times each, by one meter.
fn in_turn<M>(
    meter: &mut M,
    times: u64,
    mut ours: impl FnMut(&mut M) -> Result<f64, Error>,
    mut theirs: impl FnMut(&mut M) -> Result<f64, Error>,
) -> Result<(f64, f64), Error> {
    let mut figures = (Vec::new(), Vec::new());
    for _ in 0..times {
        figures.0.push(ours(meter)?);
        figures.1.push(theirs(meter)?);
    }
    Ok((median(figures.0), median(figures.1)))
}

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
        let row = Row::new("lock and unlock", 20.0, "pthread", 40.0);
        let text = table(&[row]);
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!(widths[0], widths[1]);
        assert!(text.ends_with("0.50\n"));
    }

    #[test]
    fn what_a_ratio_is_held_to_stands_beside_it() {
        let mut held = Row::new("SCIMemCpy, 8 B", 20.0, "UDP", 40.0);
        held.held_to = Some(1.3);
        let free = Row::new("SCIMemCpy, 4 KiB", 20.0, "WRITE", 40.0);
        let text = table(&[held, free]);
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert_eq!((widths[0], widths[0]), (widths[1], widths[2]));
        assert!(text.contains("0.50     1.30\n") && text.ends_with("-\n"));
    }
}
