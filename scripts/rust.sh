# shellcheck shell=bash
# Sourced: adds Rust's programs to the path. Under sudo without a toolchain of root's, uses that of the
# calling user. Packages from the registry still go to root's directory, so that root owns no file in the
# user's.
export PATH="$HOME/.cargo/bin:$PATH"
if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && ! command -v cargo >/dev/null; then
    # The chroot of another system may not have this user.
    user_home=$(getent passwd "$SUDO_USER" | cut -d: -f6) || user_home=
    channel=$(sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml)
    # Only if it has the toolchain: rustup would install it as root.
    if [ -x "$user_home/.cargo/bin/cargo" ] && compgen -G "$user_home/.rustup/toolchains/$channel-*" >/dev/null; then
        export PATH="$PATH:$user_home/.cargo/bin" RUSTUP_HOME="${RUSTUP_HOME:-$user_home/.rustup}"
    fi
    unset user_home channel
fi
