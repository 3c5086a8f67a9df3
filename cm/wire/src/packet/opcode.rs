//! Opcodes of the base transport header (IBA 9.2, table 38; annex A14) and the headers that each requires.

/// Transport service: the upper three bits of an opcode, for the services that this crate knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection (IBA annex A14).
    Xrc,
    /// Any other: reliable datagram, congestion notification, vendor-specific.
    Other,
}

/// The extended transport headers that follow the BTH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Layout {
    /// None: the payload follows.
    Bare,
    /// DETH.
    Deth,
    /// DETH, immediate data.
    DethImmediate,
    /// RETH.
    Reth,
    /// RETH, immediate data.
    RethImmediate,
    /// Immediate data.
    Immediate,
    /// IETH: the R_Key to invalidate.
    Ieth,
    /// AETH.
    Aeth,
    /// AETH, AtomicAckETH.
    AethAtomic,
    /// AtomicETH.
    Atomic,
    /// XRCETH.
    Xrc,
    /// XRCETH, RETH.
    XrcReth,
    /// XRCETH, RETH, immediate data.
    XrcRethImmediate,
    /// XRCETH, immediate data.
    XrcImmediate,
    /// XRCETH, IETH.
    XrcIeth,
    /// XRCETH, AtomicETH.
    XrcAtomic,
}

impl Layout {
    /// Bytes of these headers.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::Bare => 0,
            Self::Immediate | Self::Ieth | Self::Aeth | Self::Xrc => 4,
            Self::Deth | Self::XrcImmediate | Self::XrcIeth => 8,
            Self::DethImmediate | Self::AethAtomic => 12,
            Self::Reth => 16,
            Self::RethImmediate | Self::XrcReth => 20,
            Self::XrcRethImmediate => 24,
            Self::Atomic => 28,
            Self::XrcAtomic => 32,
        }
    }

    /// True if no header follows.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        matches!(self, Self::Bare)
    }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $layout:ident;)*) => {
        /// Opcode of a packet: all opcodes of RC, UC, UD and XRC. Any other is kept unchanged.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Opcode {
            $($(#[$doc])* $name,)*
            /// An opcode that this crate does not know. [`Opcode::from_byte`] makes it only for codes without
            /// a variant.
            Other(u8),
        }

        impl Opcode {
            /// Every opcode that has a variant.
            pub const KNOWN: &[Self] = &[$(Self::$name),*];

            /// Converts from the wire code.
            #[must_use]
            #[inline]
            pub const fn from_byte(code: u8) -> Self {
                match code {
                    $($code => Self::$name,)*
                    other => Self::Other(other),
                }
            }

            /// The wire code.
            #[must_use]
            #[inline]
            pub const fn to_byte(self) -> u8 {
                match self {
                    $(Self::$name => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// The headers between the BTH and the payload. With an unknown opcode, everything after the BTH
            /// is payload.
            #[must_use]
            #[inline]
            pub const fn layout(self) -> Layout {
                match self {
                    $(Self::$name => Layout::$layout,)*
                    Self::Other(_) => Layout::Bare,
                }
            }
        }
    };
}

opcodes! {
    /// RC SEND First.
    RcSendFirst = 0x00, Bare;
    /// RC SEND Middle.
    RcSendMiddle = 0x01, Bare;
    /// RC SEND Last.
    RcSendLast = 0x02, Bare;
    /// RC SEND Last with immediate.
    RcSendLastImmediate = 0x03, Immediate;
    /// RC SEND Only.
    RcSendOnly = 0x04, Bare;
    /// RC SEND Only with immediate.
    RcSendOnlyImmediate = 0x05, Immediate;
    /// RC RDMA WRITE First.
    RcWriteFirst = 0x06, Reth;
    /// RC RDMA WRITE Middle.
    RcWriteMiddle = 0x07, Bare;
    /// RC RDMA WRITE Last.
    RcWriteLast = 0x08, Bare;
    /// RC RDMA WRITE Last with immediate.
    RcWriteLastImmediate = 0x09, Immediate;
    /// RC RDMA WRITE Only.
    RcWriteOnly = 0x0a, Reth;
    /// RC RDMA WRITE Only with immediate.
    RcWriteOnlyImmediate = 0x0b, RethImmediate;
    /// RC RDMA READ request.
    RcReadRequest = 0x0c, Reth;
    /// RC RDMA READ response First.
    RcReadResponseFirst = 0x0d, Aeth;
    /// RC RDMA READ response Middle.
    RcReadResponseMiddle = 0x0e, Bare;
    /// RC RDMA READ response Last.
    RcReadResponseLast = 0x0f, Aeth;
    /// RC RDMA READ response Only.
    RcReadResponseOnly = 0x10, Aeth;
    /// RC Acknowledge.
    RcAcknowledge = 0x11, Aeth;
    /// RC ATOMIC acknowledge.
    RcAtomicAcknowledge = 0x12, AethAtomic;
    /// RC CmpSwap.
    RcCompareSwap = 0x13, Atomic;
    /// RC FetchAdd.
    RcFetchAdd = 0x14, Atomic;
    /// RC SEND Last with invalidate.
    RcSendLastInvalidate = 0x16, Ieth;
    /// RC SEND Only with invalidate.
    RcSendOnlyInvalidate = 0x17, Ieth;
    /// UC SEND First.
    UcSendFirst = 0x20, Bare;
    /// UC SEND Middle.
    UcSendMiddle = 0x21, Bare;
    /// UC SEND Last.
    UcSendLast = 0x22, Bare;
    /// UC SEND Last with immediate.
    UcSendLastImmediate = 0x23, Immediate;
    /// UC SEND Only.
    UcSendOnly = 0x24, Bare;
    /// UC SEND Only with immediate.
    UcSendOnlyImmediate = 0x25, Immediate;
    /// UC RDMA WRITE First.
    UcWriteFirst = 0x26, Reth;
    /// UC RDMA WRITE Middle.
    UcWriteMiddle = 0x27, Bare;
    /// UC RDMA WRITE Last.
    UcWriteLast = 0x28, Bare;
    /// UC RDMA WRITE Last with immediate.
    UcWriteLastImmediate = 0x29, Immediate;
    /// UC RDMA WRITE Only.
    UcWriteOnly = 0x2a, Reth;
    /// UC RDMA WRITE Only with immediate.
    UcWriteOnlyImmediate = 0x2b, RethImmediate;
    /// UD SEND Only.
    UdSendOnly = 0x64, Deth;
    /// UD SEND Only with immediate.
    UdSendOnlyImmediate = 0x65, DethImmediate;
    /// XRC SEND First.
    XrcSendFirst = 0xa0, Xrc;
    /// XRC SEND Middle.
    XrcSendMiddle = 0xa1, Xrc;
    /// XRC SEND Last.
    XrcSendLast = 0xa2, Xrc;
    /// XRC SEND Last with immediate.
    XrcSendLastImmediate = 0xa3, XrcImmediate;
    /// XRC SEND Only.
    XrcSendOnly = 0xa4, Xrc;
    /// XRC SEND Only with immediate.
    XrcSendOnlyImmediate = 0xa5, XrcImmediate;
    /// XRC RDMA WRITE First.
    XrcWriteFirst = 0xa6, XrcReth;
    /// XRC RDMA WRITE Middle.
    XrcWriteMiddle = 0xa7, Xrc;
    /// XRC RDMA WRITE Last.
    XrcWriteLast = 0xa8, Xrc;
    /// XRC RDMA WRITE Last with immediate.
    XrcWriteLastImmediate = 0xa9, XrcImmediate;
    /// XRC RDMA WRITE Only.
    XrcWriteOnly = 0xaa, XrcReth;
    /// XRC RDMA WRITE Only with immediate.
    XrcWriteOnlyImmediate = 0xab, XrcRethImmediate;
    /// XRC RDMA READ request.
    XrcReadRequest = 0xac, XrcReth;
    /// XRC RDMA READ response First.
    XrcReadResponseFirst = 0xad, Aeth;
    /// XRC RDMA READ response Middle.
    XrcReadResponseMiddle = 0xae, Bare;
    /// XRC RDMA READ response Last.
    XrcReadResponseLast = 0xaf, Aeth;
    /// XRC RDMA READ response Only.
    XrcReadResponseOnly = 0xb0, Aeth;
    /// XRC Acknowledge.
    XrcAcknowledge = 0xb1, Aeth;
    /// XRC ATOMIC acknowledge.
    XrcAtomicAcknowledge = 0xb2, AethAtomic;
    /// XRC CmpSwap.
    XrcCompareSwap = 0xb3, XrcAtomic;
    /// XRC FetchAdd.
    XrcFetchAdd = 0xb4, XrcAtomic;
    /// XRC SEND Last with invalidate.
    XrcSendLastInvalidate = 0xb6, XrcIeth;
    /// XRC SEND Only with invalidate.
    XrcSendOnlyInvalidate = 0xb7, XrcIeth;
}

impl Opcode {
    /// The transport service.
    #[must_use]
    #[inline]
    pub const fn service(self) -> Service {
        match self.to_byte() >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            3 => Service::Ud,
            5 => Service::Xrc,
            _ => Service::Other,
        }
    }

    /// True for an RC request, false for an RC response and for every other service.
    #[must_use]
    #[inline]
    pub const fn is_rc_request(self) -> bool {
        matches!(self.to_byte(), 0x00..=0x0c | 0x13 | 0x14 | 0x16 | 0x17)
    }

    /// The RC equivalent of an XRC opcode; any other opcode is returned unchanged.
    #[must_use]
    pub const fn without_xrc(self) -> Self {
        match self.service() {
            Service::Xrc => Self::from_byte(self.to_byte() & 0x1f),
            _ => self,
        }
    }

    /// The XRC equivalent of an RC opcode; any other opcode is returned unchanged.
    #[must_use]
    pub const fn with_xrc(self) -> Self {
        match self.service() {
            Service::Rc => Self::from_byte(self.to_byte() | 0xa0),
            _ => self,
        }
    }
}
