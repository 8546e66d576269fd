//! What the broker grants to calls that have timed out is given back.

use super::registry::Registry;
use crate::control::LateReply;
use crate::error::Result;
use crate::remoting::{Call, decode_body};
use crate::services::pool::{
    AllocateReply, BlockRequest, OpenRequest, PoolReply, PoolRequest, PoolStub,
};

/// Gives back what a call got whose caller has it not, nor anything else that is known of.
pub(crate) fn give_back<C: Call>(broker: &mut C, late: &LateReply) -> Result<()> {
    Registry::default().return_to(&mut PoolStub(broker), late)
}

impl Registry {
    /// Tells the broker that what a call got is not wanted any more. A block that was adopted stays
    /// this session's: to free it would destroy what it holds, and it is given up when the session
    /// ends. So stays what the session has by another call.
    pub(super) fn return_to<C: Call>(
        &self,
        broker: &mut PoolStub<'_, C>,
        late: &LateReply,
    ) -> Result<()> {
        match late.method {
            "create_pool" | "open_pool" => {
                let PoolReply { pool, .. } = decode_body(&late.body)?;
                if !self.has_pool(pool) {
                    broker.close_pool(&PoolRequest { pool }, &[])?;
                }
            }
            "allocate" => {
                let AllocateReply { handle, .. } = decode_body(&late.body)?;
                broker.free(&BlockRequest { handle }, &[])?;
            }
            "open" => {
                let OpenRequest { handle, .. } = decode_body(&late.request)?;
                if !self.holds(handle) {
                    broker.release(&BlockRequest { handle }, &[])?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The broker has carried out a move whose caller took it for failed: the other holders are on
    /// the fresh memory by now, and this session follows.
    pub(super) fn follow_late(&mut self, late: &LateReply) {
        if late.method == "end_move"
            && let Ok(BlockRequest { handle }) = decode_body(&late.request)
        {
            self.note_changed(handle);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::Event;
    use super::*;
    use crate::remoting::encode_body;
    use crate::services::pool::{Access, METHODS, SERVICE};
    use crate::test_calls::Calls;

    /// What is called for a late reply.
    fn undone(registry: &Registry, method: &'static str, request: &[u8], body: &[u8]) -> Calls {
        assert!(METHODS.iter().any(|known| known.name == method), "{method}");
        let late = LateReply {
            service: SERVICE,
            method,
            request: request.to_vec(),
            body: body.to_vec(),
            fds: Vec::new(),
        };
        let mut calls = Calls::default();
        let stub = &mut PoolStub(&mut calls);
        registry.return_to(stub, &late).unwrap();
        calls
    }

    #[test]
    fn what_comes_too_late_is_given_back_unless_it_is_had_otherwise() {
        let pool = PoolReply {
            pool: 7,
            ..PoolReply::default()
        };
        let block = AllocateReply {
            handle: 7,
            ..AllocateReply::default()
        };
        let open = OpenRequest {
            handle: 7,
            access: Access::Read,
        };
        let (pool_body, block_body) = (encode_body(&pool), encode_body(&block));
        let open_body = encode_body(&open);
        let by_pool = encode_body(&PoolRequest { pool: 7 });
        let by_block = encode_body(&BlockRequest { handle: 7 });
        let mut registry = Registry::default();
        for method in ["create_pool", "open_pool"] {
            let calls = undone(&registry, method, &[], &pool_body);
            assert_eq!(calls.0, [("close_pool", by_pool.clone())]);
        }
        let calls = undone(&registry, "allocate", &[], &block_body);
        assert_eq!(calls.0, [("free", by_block.clone())]);
        let calls = undone(&registry, "open", &open_body, &[]);
        assert_eq!(calls.0, [("release", by_block)]);
        // Called again meanwhile.
        let key = registry.add_pool("a pool", &pool);
        registry.note_held(key, 7, Access::Read);
        assert!(undone(&registry, "open_pool", &[], &pool_body).0.is_empty());
        assert!(undone(&registry, "open", &open_body, &[]).0.is_empty());
    }

    #[test]
    fn a_move_that_ended_too_late_is_followed() {
        let mut registry = Registry::default();
        for (method, expected) in [("grant", vec![]), ("end_move", vec![Event::Changed(7)])] {
            registry.follow_late(&LateReply {
                service: SERVICE,
                method,
                request: encode_body(&BlockRequest { handle: 7 }),
                body: Vec::new(),
                fds: Vec::new(),
            });
            assert_eq!(registry.take_events(), expected, "{method}");
        }
    }
}
