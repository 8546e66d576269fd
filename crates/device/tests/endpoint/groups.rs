//! Queue pairs that cannot be attached to a multicast group.

use std::net::Ipv6Addr;

use causeway_device::{Errno, QPT_UD};

use crate::broker::Broker;
use crate::denied::denied;
use crate::side::smallest;

#[test]
fn a_queue_pair_without_a_receiver_is_no_member_of_a_group() {
    let broker = Broker::start();
    let context = broker.open().unwrap();
    let cq = context.create_cq(1, None, 0).unwrap();
    let init = smallest(QPT_UD, &cq, &cq);
    let qp = context.alloc_pd().unwrap().create_qp(init, 0).unwrap();
    let group = "ff0e::ffff:239.1.2.3".parse::<Ipv6Addr>().unwrap().octets();
    let without: [(&[i64], i32); 3] = [
        // A descriptor of the port.
        (&[libc::SYS_fcntl], libc::EMFILE),
        // What wakes the thread that receives.
        (&[libc::SYS_eventfd2], libc::EMFILE),
        // That thread.
        (&[libc::SYS_clone3, libc::SYS_clone], libc::EAGAIN),
    ];
    for (calls, errno) in without {
        let attach = || denied(calls, errno, || qp.attach(group));
        assert_eq!(attach(), Err(Errno(errno)));
        assert_eq!(attach(), Err(Errno(errno)), "it is no member");
    }
    assert_eq!(qp.detach(group), Err(Errno(libc::EINVAL)));
    qp.destroy().unwrap();
}
