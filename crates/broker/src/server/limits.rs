//! Endpoints are told what they may send.

use causeway_fabric::remoting::encode_body;
use causeway_fabric::services::limit::{EVENT_LIMITS, SERVICE};

use super::Server;

impl Server {
    /// Tells the endpoints whose limits have changed.
    pub(super) fn tell_limits(&mut self) {
        for id in self.hub.rates.take_due() {
            let Some((tenant, vm)) = self.hub.endpoint(id).map(|found| (found.tenant, found.vm))
            else {
                continue;
            };
            let Some(&number) = self.session_of.get(&id) else {
                continue;
            };
            let (news, page) = self.hub.rates.news_for(id, tenant, vm);
            let Some(session) = self.sessions.get_mut(&number) else {
                continue;
            };
            let (body, fds) = (encode_body(&news), page.into_iter().collect());
            if session
                .event_with(SERVICE, EVENT_LIMITS, &body, fds)
                .is_err()
            {
                self.end(number, "it does not read or is gone");
            } else {
                self.watch_again(number);
            }
        }
    }
}
