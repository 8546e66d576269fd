//! What there is, for people.

use causeway_fabric::limits::STATUS_QPS_PER_PAGE;
use causeway_fabric::services::sisci::{
    Item, ItemCursor, ItemKind, ItemPage, SegmentState, SisciSession,
};

use super::{ConnectionState, Holdings, Tables};
use crate::config::Tenant;
use crate::ids::TenantId;
use crate::members::Members;

/// Items in one page.
pub const ITEMS_PER_PAGE: usize = STATUS_QPS_PER_PAGE;

impl Tables {
    /// The page after `cursor`, of one tenant or of all.
    pub(super) fn items(
        &self,
        cursor: &ItemCursor,
        seen: Option<TenantId>,
        members: &Members,
        tenants: &[Tenant],
    ) -> ItemPage {
        let from = match cursor.items {
            0 => cursor.session.saturating_add(1),
            _ => cursor.session,
        };
        let mut later = self.holdings.range(from..);
        let found = later.find(|(_, own)| seen.is_none_or(|tenant| tenant == own.tenant));
        let Some((&session, own)) = found else {
            return ItemPage::default();
        };
        // The session whose next page was asked for may have ended since.
        let skipped = match session == cursor.session {
            true => cursor.items as usize,
            false => 0,
        };
        let mut items = self.items_of(own).skip(skipped);
        let page: Vec<Item> = items.by_ref().take(ITEMS_PER_PAGE).collect();
        let member = members.get(session);
        let entry = SisciSession {
            session,
            pid: member.map_or(0, |member| member.pid),
            uid: member.map_or(0, |member| member.uid),
            comm: member.map(|member| member.comm.clone()).unwrap_or_default(),
            tenant: tenants
                .get(own.tenant)
                .map(|tenant| tenant.name.clone())
                .unwrap_or_default(),
            node: own.node,
            items: page,
        };
        ItemPage {
            entry: Some(entry),
            partial: items.next().is_some(),
        }
    }

    fn items_of<'a>(&'a self, own: &'a Holdings) -> impl Iterator<Item = Item> + 'a {
        let segments = own.segments.values().filter_map(|name| {
            let segment = self.segments.get(name)?;
            Some(Item {
                kind: ItemKind::Segment,
                id: segment.id(),
                node: segment.node(),
                size: segment.size,
                state: segment.state(),
                peers: segment.connections.len() as u32,
            })
        });
        let connections = own.connections.values().map(|connection| {
            let made = match connection.state {
                ConnectionState::Made { segment, .. } => self.segments.get(&segment),
                _ => None,
            };
            Item {
                kind: ItemKind::Connection,
                id: connection.request.id,
                node: connection.request.node,
                size: made.map_or(0, |segment| segment.size),
                state: state(made.is_some()),
                peers: 0,
            }
        });
        let interrupts = own.interrupts.values().map(|interrupt| Item {
            kind: match interrupt.key.data {
                true => ItemKind::DataInterrupt,
                false => ItemKind::Interrupt,
            },
            id: interrupt.key.number,
            node: own.node,
            size: 0,
            state: state(true),
            peers: interrupt.cells.all.len() as u32,
        });
        let triggers = own.interrupt_connections.values().map(|connection| Item {
            kind: match connection.request.data {
                true => ItemKind::DataInterruptConnection,
                false => ItemKind::InterruptConnection,
            },
            id: connection.request.number,
            node: connection.request.node,
            size: 0,
            state: state(!connection.cells.all.is_empty()),
            peers: connection.cells.all.len() as u32,
        });
        segments
            .chain(connections)
            .chain(interrupts)
            .chain(triggers)
    }
}

fn state(made: bool) -> SegmentState {
    if made {
        SegmentState::Available
    } else {
        SegmentState::Created
    }
}
