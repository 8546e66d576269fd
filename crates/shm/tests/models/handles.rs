//! The scenarios, and what the table is built with.

use std::sync::Arc;

use crate::checker::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::checker::{expect_failures, model, thread};

/// What the table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types, reason = "the names are SISCI's")]
pub enum Error {
    API_NOSPC,
    ILLEGAL_PARAMETER,
}

/// loom's lock, with the calls of the one that the library has.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap()
    }
}

/// Declares the scenarios, for a table.
macro_rules! scenarios {
    ($name:ident, $table:path) => {
        mod $name {
            use super::*;
            use table::{Handle, Object, Table};
            use $table as table;

            /// An object that counts its end.
            pub struct Thing {
                number: u32,
                ended: Arc<AtomicUsize>,
            }

            impl Object for Thing {
                const TAG: u8 = 3;
            }

            impl Drop for Thing {
                fn drop(&mut self) {
                    self.ended.fetch_add(1, Relaxed);
                }
            }

            fn insert(
                table: &Table<Thing>,
                number: u32,
                ended: &Arc<AtomicUsize>,
            ) -> Handle<Thing> {
                let ended = Arc::clone(ended);
                let inserted = table.insert(|_| Ok(Arc::new(Thing { number, ended })));
                inserted.expect("there is room")
            }

            /// One thread looks an object up while another removes it, and makes the entry's next.
            pub fn looked_up_while_it_is_replaced(lookers: usize) {
                model(3, move || {
                    let table = Arc::new(Table::new(0));
                    let ended = Arc::new(AtomicUsize::new(0));
                    let first = insert(&table, 1, &ended);
                    let look = |table: Arc<Table<Thing>>| {
                        move || {
                            if let Ok(seen) = table.get(first) {
                                assert_eq!(seen.number, 1, "another object by the first's handle");
                            }
                        }
                    };
                    let lookers: Vec<_> = (0..lookers)
                        .map(|_| thread::spawn(look(Arc::clone(&table))))
                        .collect();
                    assert!(table.remove(first).is_some());
                    let next = insert(&table, 2, &ended);
                    let there = |when| match table.get(next) {
                        Ok(seen) => assert_eq!(seen.number, 2, "{when}"),
                        Err(_) => panic!("the next object is gone {when}"),
                    };
                    there("at once");
                    for looker in lookers {
                        looker.join().unwrap();
                    }
                    there("in the end");
                    assert_eq!(ended.load(Relaxed), 1, "the first has ended");
                    assert!(table.remove(next).is_some());
                    assert_eq!(ended.load(Relaxed), 2, "both have ended");
                });
            }

            /// Two threads remove the same object: one of them has done it.
            #[allow(dead_code, reason = "where a defect is planted")]
            pub fn removed_by_two() {
                model(3, || {
                    let table = Arc::new(Table::new(0));
                    let ended = Arc::new(AtomicUsize::new(0));
                    let first = insert(&table, 1, &ended);
                    let theirs = Arc::clone(&table);
                    let other = thread::spawn(move || theirs.remove(first).is_some());
                    let mine = table.remove(first).is_some();
                    let next = insert(&table, 2, &ended);
                    let other = other.join().unwrap();
                    assert!(mine ^ other, "removed by {mine} and {other}");
                    assert_eq!(ended.load(Relaxed), 1, "the first has ended");
                    assert!(table.get(next).is_ok(), "the next object is gone");
                });
            }
        }
    };
}

scenarios!(as_it_is, crate::sound::table);
scenarios!(as_it_was, crate::unclaimed::table);

#[test]
fn who_looks_up_what_is_replaced_sees_it_or_not() {
    as_it_is::looked_up_while_it_is_replaced(1);
}

#[test]
fn two_who_look_up_what_is_replaced_see_it_or_not() {
    as_it_is::looked_up_while_it_is_replaced(2);
}

#[test]
fn an_object_is_removed_once() {
    as_it_is::removed_by_two();
}

#[test]
fn planted_defects_are_found() {
    expect_failures(&[(
        "handles::an_object_that_nobody_claims",
        "the next object is gone",
    )]);
}

#[test]
#[ignore = "fails: run by `planted_defects_are_found`"]
fn an_object_that_nobody_claims() {
    as_it_was::looked_up_while_it_is_replaced(1);
}
