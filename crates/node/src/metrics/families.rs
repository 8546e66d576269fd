//! Families of metrics, by the names that they all have.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

fn name(short: &str) -> String {
    format!("causeway_{short}")
}

pub(super) fn gauge(
    registry: &Registry,
    short: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntGaugeVec> {
    let made = IntGaugeVec::new(Opts::new(name(short), help), labels)?;
    registry.register(Box::new(made.clone()))?;
    Ok(made)
}

pub(super) fn counter(
    registry: &Registry,
    short: &str,
    help: &str,
    labels: &[&str],
) -> prometheus::Result<IntCounterVec> {
    let options = Opts::new(name(short) + "_total", help);
    let made = IntCounterVec::new(options, labels)?;
    registry.register(Box::new(made.clone()))?;
    Ok(made)
}

/// What does not fit is as much as fits.
pub(super) fn amount(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
