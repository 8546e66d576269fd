//! A table of objects named by small numbers, lowest free number first.

/// Objects by number.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
    limit: u32,
}

impl<T> Slab<T> {
    pub fn new(limit: u32) -> Self {
        Slab {
            entries: Vec::new(),
            free: Vec::new(),
            limit,
        }
    }

    /// Stores an object; `None` when the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(at) = self.free.pop() {
            self.entries[at as usize] = Some(value);
            return Some(at);
        }
        let at = u32::try_from(self.entries.len())
            .ok()
            .filter(|at| *at < self.limit)?;
        self.entries.push(Some(value));
        Some(at)
    }

    /// Stores an object under a number that another table has given it. Neither
    /// [`Slab::insert`] nor [`Slab::remove`] is called of such a table.
    pub fn put(&mut self, at: u32, value: T) {
        let place = at as usize;
        if self.entries.len() <= place {
            self.entries.resize_with(place + 1, || None);
        }
        self.entries[place] = Some(value);
    }

    /// Takes away what was stored by [`Slab::put`].
    pub fn take(&mut self, at: u32) -> Option<T> {
        self.entries.get_mut(at as usize)?.take()
    }

    /// Takes away all that was stored by [`Slab::put`].
    pub fn take_all(&mut self) -> impl Iterator<Item = (u32, T)> {
        let entries = std::mem::take(&mut self.entries);
        (0..).zip(entries).filter_map(|(at, e)| Some((at, e?)))
    }

    pub fn get(&self, at: u32) -> Option<&T> {
        self.entries.get(at as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    pub fn remove(&mut self, at: u32) -> Option<T> {
        let value = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(value)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..)
            .zip(&self.entries)
            .filter_map(|(at, e)| Some((at, e.as_ref()?)))
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}
