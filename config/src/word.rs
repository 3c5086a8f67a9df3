//! Choices with one word each, in the file and on the command line.

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
            /// All words.
            pub const WORDS: &[&str] = &[$($word),*];

            /// Returns the word.
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
    /// Behavior of a worker after an iteration without work.
    Idle {
        /// Poll again immediately.
        Poll = "poll",
        /// Poll again after a pause instruction.
        Pause = "pause",
        /// Sleep for increasing times, or until a port reports a packet.
        Sleep = "sleep",
    }
);

word!(
    /// Log level.
    LogLevel {
        /// Failures.
        Error = "error",
        /// Also conditions that work but may not be intended.
        Warn = "warn",
        /// Also changes.
        Info = "info",
        /// Also information for debugging.
        Debug = "debug",
    }
);

word!(
    /// Transport of unicast packets through the fabric.
    Mode {
        /// Only UD (RFC 4391).
        Datagram = "datagram",
        /// RC connections to hosts that accept them, otherwise UD (RFC 4755).
        Connected = "connected",
    }
);

word!(
    /// Handling of the gateway's initial privileges.
    Privileges {
        /// Threads keep what they need once ports and devices are open.
        Drop = "drop",
        /// All threads keep all privileges.
        Keep = "keep",
    }
);

word!(
    /// Action for a system call that is not in the thread's list.
    Seccomp {
        /// Kill the gateway if the lists were tested with its drivers; otherwise log the call.
        Auto = "auto",
        /// Kill the gateway.
        Kill = "kill",
        /// Log the call in the kernel log.
        Log = "log",
        /// No lists.
        Off = "off",
    }
);

word!(
    /// Contents of a core dump.
    Cores {
        /// No core dump.
        None = "none",
        /// Stacks and the heap, without packet buffers and shared memory.
        Lean = "lean",
        /// The system default.
        Full = "full",
    }
);

word!(
    /// Driver of the InfiniBand ports.
    Driver {
        /// The software device if one is configured, otherwise mlx5 for a supported device and verbs for
        /// others.
        Auto = "auto",
        /// The software ConnectX.
        Soft = "soft",
        /// The gateway's own driver on the rings of a ConnectX-4 or later.
        Mlx5 = "mlx5",
        /// Any RDMA device, through library calls of libibverbs.
        Verbs = "verbs",
    }
);

word!(
    /// Method for sending messages in more buffers than a send supports.
    LongMessages {
        /// Copy them into one large buffer.
        Copy = "copy",
        /// Register a memory key for each, if the device supports it; otherwise copy.
        Key = "key",
    }
);
