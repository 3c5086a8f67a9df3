//! The route of a directed-route packet, as its sender writes it.

/// Maximum hops of a directed route (IBA 14.2.1.2).
pub const MAX_HOPS: u8 = 63;

/// Egress ports, one per hop. A route without hops ends at the node itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DirectedPath {
    hops: u8,
    /// As in the packet: entry 0 is unused.
    ports: [u8; 64],
}

impl DirectedPath {
    /// The route to the node itself.
    pub const LOCAL: Self = Self { hops: 0, ports: [0; 64] };

    /// Adds one hop through `port`. Returns `None` if the route already has 63 hops.
    #[must_use]
    pub fn then(mut self, port: u8) -> Option<Self> {
        if self.hops == MAX_HOPS {
            return None;
        }
        self.hops += 1;
        *self.ports.get_mut(usize::from(self.hops))? = port;
        Some(self)
    }

    /// Number of hops.
    #[must_use]
    pub const fn hops(&self) -> u8 {
        self.hops
    }

    /// The ports in the format of the packet, from index 1.
    #[must_use]
    pub const fn ports(&self) -> &[u8; 64] {
        &self.ports
    }
}

impl std::fmt::Debug for DirectedPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("0")?;
        for port in self.ports.iter().skip(1).take(usize::from(self.hops)) {
            write!(f, ",{port}")?;
        }
        Ok(())
    }
}
