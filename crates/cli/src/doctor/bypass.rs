//! Whether short datagrams can travel by AF_XDP.

use super::Finding;

/// The setting, as `causeway run --port` makes it.
const VARIABLE: &str = "CAUSEWAY_PORT";

const TOPIC: &str = "AF_XDP";

/// The daemon is asked whether it would lend this user a socket, if the user asks for one: nobody
/// else misses anything, nor is to wait for an answer.
pub fn bypass() -> Vec<Finding> {
    let setting = std::env::var_os(VARIABLE);
    let is_wanted = setting.is_some_and(|value| value == "xdp");
    vec![examine(is_wanted, causeway_xdp::look)]
}

fn examine(is_wanted: bool, look: impl FnOnce() -> Result<(u32, u32), String>) -> Finding {
    match is_wanted {
        true => judge(look()),
        false => Finding::ok(TOPIC, "not asked for (causeway run --port xdp)".to_owned()),
    }
}

fn judge(found: Result<(u32, u32), String>) -> Finding {
    match found {
        Ok((ifindex, queue)) => Finding::ok(
            TOPIC,
            format!(
                "queue {queue} of interface {ifindex} is lent to who asks for it: causeway run \
                 --port xdp (experimental)"
            ),
        ),
        Err(reason) => Finding::warn(TOPIC, format!("{reason}: short datagrams travel by UDP")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn a_refusal_matters_to_who_has_asked() {
        let refused = || Err("all queues are taken".to_owned());
        let warned = examine(true, refused);
        assert_eq!(warned.verdict, Verdict::Warn);
        assert!(warned.text.contains("all queues are taken"));
        let lent = examine(true, || Ok((3, 1)));
        assert_eq!(lent.verdict, Verdict::Ok);
        assert!(lent.text.contains("queue 1 of interface 3"));
        let unwanted = examine(false, || panic!("nobody is to be asked"));
        assert_eq!(unwanted.verdict, Verdict::Ok);
    }
}
