//! `enum ibv_rate` and what it stands for: `ibv_rate_to_mbps(3)`, `ibv_rate_to_mult(3)`.

use core::ffi::c_int;

/// Code, multiple of 2.5 Gb/s, Mb/s. Rates since FDR are no exact multiples; some of them have a
/// nominal one all the same, as providers expect.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2_500),
    (5, 2, 5_000),
    (3, 4, 10_000),
    (6, 8, 20_000),
    (4, 12, 30_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25_781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];
/// `IBV_RATE_MAX`
const RATE_MAX: c_int = 0;

/// `ibv_rate_to_mult(3)`: -1 for a rate that is no multiple of 2.5 Gb/s
pub(crate) extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.1)
}

/// `mult_to_ibv_rate(3)`
pub(crate) extern "C" fn mult_to_rate(mult: c_int) -> c_int {
    RATES
        .iter()
        .find(|r| mult > 0 && r.1 == mult)
        .map_or(RATE_MAX, |r| r.0)
}

/// `ibv_rate_to_mbps(3)`: -1 for an unknown rate
pub(crate) extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// `mbps_to_ibv_rate(3)`
pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.2 == mbps).map_or(RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversions_are_inverse() {
        for (rate, mult, mbps) in RATES {
            assert_eq!(mbps_to_rate(mbps), rate);
            assert_eq!(rate_to_mbps(rate), mbps);
            assert_eq!(rate_to_mult(rate), mult);
            if mult > 0 {
                assert_eq!(mult_to_rate(mult), rate);
            }
        }
        assert_eq!(mult_to_rate(-1), RATE_MAX);
        assert_eq!(rate_to_mbps(99), -1);
    }
}
