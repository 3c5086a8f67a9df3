//! Configuration of the gateway: EAL command line and TOML file, validated.
#![forbid(unsafe_code)]
