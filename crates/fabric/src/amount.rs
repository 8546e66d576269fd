//! Amounts of bytes, as people write them.

/// Bytes of a text such as `512 MiB`.
pub fn amount(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_units() {
        assert_eq!(amount("12"), Some(12));
        assert_eq!(amount(" 3KiB "), Some(3 << 10));
        assert_eq!(amount("16777215 TiB"), Some(16_777_215 << 40));
        for bad in ["", "GiB", "1.5 GiB", "1 GB", "16777216 TiB", "-1"] {
            assert_eq!(amount(bad), None, "{bad}");
        }
    }
}
