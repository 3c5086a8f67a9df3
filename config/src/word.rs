//! Choices: one word each, in the file and on the command line.

use std::str::FromStr;

use crate::value::{Fault, Value};

/// Defines an enum that is one word in the file and on the command line.
macro_rules! word {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
        }

        impl $name {
            /// The words that it can be.
            pub const WORDS: &[&str] = &[$($word),*];

            /// The word.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(format!("`{word}` is none of: {}", Self::WORDS.join(", "))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl Value for $name {
            type Raw = String;
            type Legal = ();

            fn read(_: &str, word: String, _: Option<()>) -> Result<Self, Fault> {
                word.parse().map_err(|what: String| Fault::new(what, "write one of these words"))
            }

            fn toml(&self) -> Option<String> {
                Some(format!("\"{self}\""))
            }
        }
    };
}

word!(
    /// What a worker does in a turn that found nothing to do.
    Idle {
        /// Asks again at once.
        Poll = "poll",
        /// Asks again after a pause instruction.
        Pause = "pause",
        /// Sleeps for a moment, longer and longer, or until a port tells of a packet.
        Sleep = "sleep",
    }
);

word!(
    /// How much is logged.
    LogLevel {
        /// What failed.
        Error = "error",
        /// What will work, though perhaps not as meant, too.
        Warn = "warn",
        /// What changes, too.
        Info = "info",
        /// What is needed to find faults, too.
        Debug = "debug",
    }
);

word!(
    /// How unicast packets travel through the fabric.
    Mode {
        /// By UD only (RFC 4391).
        Datagram = "datagram",
        /// By RC connections to hosts that accept them, else by UD (RFC 4755).
        Connected = "connected",
    }
);

word!(
    /// What becomes of the privileges that the gateway was started with.
    Privileges {
        /// Threads keep what they need, once ports and devices are open.
        Drop = "drop",
        /// All threads keep all.
        Keep = "keep",
    }
);

word!(
    /// What becomes of a thread that makes a system call which is not on its list.
    Seccomp {
        /// The gateway ends where it was run under the lists with the same drivers, else the kernel's log says so.
        Auto = "auto",
        /// The gateway ends.
        Kill = "kill",
        /// The kernel's log says so.
        Log = "log",
        /// There are no lists.
        Off = "off",
    }
);

word!(
    /// What a core dump holds.
    Cores {
        /// There is none.
        None = "none",
        /// Stacks and the heap, no packet buffers and no memory that is shared.
        Lean = "lean",
        /// As the system has it.
        Full = "full",
    }
);

word!(
    /// What drives the InfiniBand ports.
    Driver {
        /// The software device if one is configured, else mlx5 for a device of that kind, verbs for others.
        Auto = "auto",
        /// The software ConnectX.
        Soft = "soft",
        /// The gateway's own driver on the rings of a ConnectX-4 or later.
        Mlx5 = "mlx5",
        /// Any RDMA device, by the calls of libibverbs.
        Verbs = "verbs",
    }
);

word!(
    /// How messages are sent that are in more buffers than a send can name.
    LongMessages {
        /// Copied into one large buffer.
        Copy = "copy",
        /// Under a memory key of their own, where the device can; copied elsewhere.
        Key = "key",
    }
);
