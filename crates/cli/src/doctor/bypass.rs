//! Whether short datagrams can travel by AF_XDP.

use super::Finding;

/// The setting, as `causeway run --port` makes it.
const VARIABLE: &str = "CAUSEWAY_PORT";

/// The daemon is asked whether it would lend this user a socket. Nobody who has not asked for one
/// misses anything.
pub fn bypass() -> Vec<Finding> {
    let is_wanted = std::env::var_os(VARIABLE).is_some_and(|value| value == "xdp");
    vec![judge(causeway_xdp::look(), is_wanted)]
}

fn judge(found: Result<(u32, u32), String>, is_wanted: bool) -> Finding {
    const TOPIC: &str = "AF_XDP";
    match found {
        Ok((ifindex, queue)) => Finding::ok(
            TOPIC,
            format!(
                "queue {queue} of interface {ifindex} is lent to who asks for it: causeway run \
                 --port xdp (experimental)"
            ),
        ),
        Err(reason) if is_wanted => {
            Finding::warn(TOPIC, format!("{reason}: short datagrams travel by UDP"))
        }
        Err(reason) => Finding::ok(TOPIC, format!("not asked for; {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_refusal_matters_to_who_has_asked() {
        let refused = || Err("all queues are taken".to_owned());
        let warned = judge(refused(), true);
        assert_eq!(warned.verdict, Verdict::Warn);
        assert!(warned.text.contains("all queues are taken"));
        assert_eq!(judge(refused(), false).verdict, Verdict::Ok);
        let lent = judge(Ok((3, 1)), true);
        assert_eq!(lent.verdict, Verdict::Ok);
        assert!(lent.text.contains("queue 1 of interface 3"));
    }
}
