//! How it looks: two lines of sums, a table, a line of keys.

use causeway_fabric::status::{EndpointStatus, Wire};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line as Text;
use ratatui::widgets::{Paragraph, Row, Table};

use super::model::Rates;
use super::{Top, rows};

/// What the table shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Endpoints,
    QueuePairs,
    Waits,
}

impl View {
    pub fn next(self) -> View {
        match self {
            View::Endpoints => View::QueuePairs,
            View::QueuePairs => View::Waits,
            View::Waits => View::Endpoints,
        }
    }
}

/// What endpoints are ordered by: the columns, but for the queue pairs', which count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Pid,
    Command,
    Tenant,
    QueuePairs,
    Sent,
    Received,
    Messages,
    Retransmits,
}

/// In the order of the columns, with what each is called.
const SORTS: [(Sort, &str); 8] = [
    (Sort::Pid, "PID"),
    (Sort::Command, "COMMAND"),
    (Sort::Tenant, "TENANT"),
    (Sort::QueuePairs, "queue pairs"),
    (Sort::Sent, "SENT/s"),
    (Sort::Received, "RECV/s"),
    (Sort::Messages, "MSGS/s"),
    (Sort::Retransmits, "RETRANS"),
];

impl Sort {
    fn at(self) -> usize {
        SORTS.iter().position(|sort| sort.0 == self).unwrap_or(0)
    }

    pub fn next(self) -> Sort {
        SORTS[(self.at() + 1) % SORTS.len()].0
    }

    pub fn previous(self) -> Sort {
        SORTS[(self.at() + SORTS.len() - 1) % SORTS.len()].0
    }
}

/// Names of a view's columns, and their widths; 0: what is left.
type Columns = &'static [(&'static str, u16)];

const ENDPOINTS: Columns = &[
    ("PID", 7),
    ("COMMAND", 0),
    ("TENANT", 10),
    ("SHM", 5),
    ("UDP", 5),
    ("SENT/s", 7),
    ("RECV/s", 7),
    ("MSGS/s", 7),
    ("RETRANS", 8),
];
const QUEUE_PAIRS: Columns = &[
    ("PID", 7),
    ("COMMAND", 0),
    ("QP", 8),
    ("PEER", 8),
    ("ON", 16),
    ("WIRE", 4),
    ("STATE", 18),
];
const WAITS: Columns = &[("PID", 7), ("COMMAND", 15), ("WAITS FOR", 0)];

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, top: &mut Top) {
    let parts = [
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [head, _, middle, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(sums(top)), head);
    let keys = " q quit   Tab or 1-3 view   < > sort   r reverse   arrows scroll";
    let inverse = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(keys).style(inverse), foot);
    if let Some(problem) = &top.problem {
        frame.render_widget(Paragraph::new(problem.as_str()), middle);
        return;
    }
    let (columns, lines) = match top.view {
        View::Endpoints => (
            ENDPOINTS,
            rows::endpoints(&top.model, top.sort, top.reversed),
        ),
        View::QueuePairs => (QUEUE_PAIRS, rows::queue_pairs(&top.model)),
        View::Waits => (WAITS, rows::waits(&top.model)),
    };
    if lines.is_empty() {
        frame.render_widget(Paragraph::new(nothing(top.view)), middle);
        return;
    }
    top.from = top.from.min(lines.len() - 1);
    let widths = columns.iter().map(|&(_, width)| match width {
        0 => Constraint::Min(8),
        width => Constraint::Length(width),
    });
    let head = Row::new(columns.iter().map(|column| column.0)).style(inverse);
    let shown = lines.into_iter().skip(top.from).map(Row::new);
    frame.render_widget(Table::new(shown, widths).header(head), middle);
}

fn nothing(view: View) -> &'static str {
    match view {
        View::Endpoints => "no endpoint is attached",
        View::QueuePairs => "no queue pair is connected",
        View::Waits => "nobody waits",
    }
}

/// The two lines at the top.
fn sums(top: &Top) -> Vec<Text<'static>> {
    let found = top.model.endpoints();
    let all = found
        .iter()
        .fold(Rates::default(), |sum, one| sum.plus(one.1));
    let of = |wire| -> usize {
        let count =
            |endpoint: &EndpointStatus| endpoint.qps.iter().filter(|qp| qp.wire == wire).count();
        found.iter().map(|one| count(one.0)).sum()
    };
    let order = SORTS[top.sort.at()].1;
    let endpoints = found.len();
    let first = format!(
        "causeway top: {endpoints} endpoints, {} QPs by shm, {} by udp; by {order}{}",
        of(Wire::Ring),
        of(Wire::Udp),
        if top.reversed { ", reversed" } else { "" }
    );
    let second = format!(
        "sent {}B/s, received {}B/s, {} messages/s, {} retransmissions/s",
        rows::amount(all.sent),
        rows::amount(all.received),
        rows::amount(all.messages),
        rows::amount(all.retransmits)
    );
    vec![Text::from(first), Text::from(second)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_goes_round() {
        let mut sort = Sort::Pid;
        for _ in 0..SORTS.len() {
            assert_eq!(sort.next().previous(), sort);
            sort = sort.next();
        }
        assert_eq!(sort, Sort::Pid);
    }

    #[test]
    fn a_table_fits_eighty_columns() {
        for columns in [ENDPOINTS, QUEUE_PAIRS, WAITS] {
            let spaces = columns.len() as u16 - 1;
            // A column without a width has what is left, which is to be enough for a name.
            let least = |width: u16| if width == 0 { 8 } else { width };
            let widths = columns.iter().map(|column| least(column.1)).sum::<u16>();
            assert!(widths + spaces <= 80, "{columns:?}");
        }
    }
}
