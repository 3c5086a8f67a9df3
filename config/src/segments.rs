//! Reads the segments of the file and checks them against each other.

use std::ops::Range;

use toml::Spanned;

use crate::address::Route;
use crate::error::ConfigError;
use crate::raw::Raw;
use crate::segment::{MAX_ROUTES, MAX_SEGMENTS, RawRoute, RawSegment, RouteKeys, Segment, SegmentName};
use crate::settings::{Ethernet, Gateway, InfiniBand, Overrides, RawInfiniBand};
use crate::source::Source;

/// A segment with its location in the file.
struct Placed<'r> {
    segment: Segment,
    /// `None` for the implicit segment, which has no section.
    raw: Option<&'r Spanned<RawSegment>>,
    /// True if it has errors of its own. It is then not compared with other segments.
    is_faulty: bool,
}

impl Placed<'_> {
    fn span(&self) -> Range<usize> {
        self.raw.map_or(0..0, Spanned::span)
    }
}

/// Reads all segments. Omitted keys are taken from the other sections.
pub(crate) fn read(
    source: &Source<'_>,
    raw: &Raw,
    gateway: &Gateway,
    ethernet: &Ethernet,
    infiniband: &InfiniBand,
    overrides: &Overrides,
) -> Result<Vec<Segment>, ConfigError> {
    let base = Segment {
        ethernet: ethernet.port.clone(),
        device: infiniband.device.clone(),
        port: infiniband.port,
        pkey: infiniband.pkey,
        scope: infiniband.scope,
        mode: infiniband.mode,
        mtu: ethernet.mtu,
        priority: gateway.priority,
        ..Segment::default()
    };
    let all = match raw.segment.as_deref() {
        None | Some([]) => {
            let segment = Segment { address: gateway.address, ..base };
            vec![Placed { segment, raw: None, is_faulty: false }]
        }
        Some(given) => {
            if let Some(address) = &raw.gateway.address {
                let what = "the address of [gateway] only applies without [[segment]]";
                let remedy = "move it into its [[segment]]";
                source.keep(Err(source.error(address.span(), what, remedy)), ())?;
            }
            if let Some(more) = given.get(MAX_SEGMENTS) {
                let what = format!("{} segments", given.len());
                let remedy = format!("keep at most {MAX_SEGMENTS} of them");
                source.keep(Err(source.error(more.span(), what, remedy)), ())?;
            }
            given
                .iter()
                .take(MAX_SEGMENTS)
                .map(|raw| {
                    let before = source.kept();
                    let mut segment = source.keep(one(source, raw, &base), base.clone())?;
                    segment.mode = overrides.mode.unwrap_or(segment.mode);
                    Ok(Placed { segment, raw: Some(raw), is_faulty: source.kept() > before })
                })
                .collect::<Result<_, _>>()?
        }
    };
    let check = Check { source, infiniband: &raw.infiniband, settings: infiniband };
    for (at, one) in all.iter().enumerate().filter(|(_, one)| !one.is_faulty) {
        source.keep(check.device(one), ())?;
        for other in all.iter().take(at).filter(|other| !other.is_faulty) {
            source.keep(check.pair(other, one), ())?;
        }
    }
    Ok(all.into_iter().map(|placed| placed.segment).collect())
}

fn one(source: &Source<'_>, raw: &Spanned<RawSegment>, base: &Segment) -> Result<Segment, ConfigError> {
    let (keys, before) = (raw.get_ref(), source.kept());
    let mut segment = keys.read(source, base.clone())?;
    if keys.name.is_none() {
        segment.name = SegmentName::implied(segment.vlan, segment.pkey);
    }
    if let Some(mtu) = keys.mtu.as_ref().filter(|_| segment.mtu > base.mtu) {
        let what = format!("mtu = {} is more than the {} of [ethernet]", segment.mtu, base.mtu);
        let remedy = format!("write at most {}, or a larger mtu into [ethernet]", base.mtu);
        source.keep(Err(source.error(mtu.span(), what, remedy)), ())?;
    }
    let routes = keys.route.as_deref().unwrap_or_default();
    if let Some(more) = routes.get(MAX_ROUTES) {
        let what = format!("segment `{}` has {} routes", segment.name, routes.len());
        let remedy = format!("keep at most {MAX_ROUTES}; one shorter prefix can cover many");
        return Err(source.error(more.span(), what, remedy));
    }
    for raw in routes {
        // The next hop can only be checked if the segment's subnets are valid.
        let route = match source.kept() == before {
            true => route(source, raw, &segment),
            false => raw.get_ref().read(source, RouteKeys::default()).map(|_| None),
        };
        segment.routes.extend(source.keep(route, None)?);
    }
    Ok(segment)
}

fn route(
    source: &Source<'_>,
    raw: &Spanned<RawRoute>,
    segment: &Segment,
) -> Result<Option<Route>, ConfigError> {
    let keys = raw.get_ref();
    let at = |span: Option<Range<usize>>| span.unwrap_or_else(|| raw.span());
    let (to_at, via_at) = (at(keys.to.as_ref().map(Spanned::span)), at(keys.via.as_ref().map(Spanned::span)));
    let (to, via) = match keys.read(source, RouteKeys::default())? {
        RouteKeys { to: Some(to), via: Some(via) } => (to, via),
        // The key is given but invalid, which has been reported.
        RouteKeys { to: None, .. } if keys.to.is_some() => return Ok(None),
        RouteKeys { via: None, .. } if keys.via.is_some() => return Ok(None),
        RouteKeys { to: None, .. } => {
            let remedy = "add the destination network, for example to = \"0.0.0.0/0\"";
            return Err(source.error(to_at, "the route has no `to`", remedy));
        }
        RouteKeys { via: None, .. } => {
            let remedy = "add the router's address, for example via = \"10.77.0.1\"";
            return Err(source.error(via_at, "the route has no `via`", remedy));
        }
    };
    let Some(link) = segment.on_link().filter(|p| p.contains(via)).max_by_key(|p| p.prefix_len()) else {
        let what = format!(
            "the route to {to} has an unreachable router: {via} is in no subnet of segment `{}`",
            segment.name
        );
        let subnets: Vec<String> = segment.on_link().map(|p| p.to_string()).collect();
        let remedy = match subnets.as_slice() {
            [] => "give the segment an address or subnets that contain the router".to_owned(),
            known => format!("use a router in {}, or add its network to subnets", known.join(", ")),
        };
        return Err(source.error(via_at, what, remedy));
    };
    if segment.address.is_some_and(|own| own.address == via) {
        let what = format!("the route to {to} uses the gateway's own address {via}");
        return Err(source.error(via_at, what, "use the address of the router"));
    }
    if !link.has_host(via) {
        let what = format!("the route to {to} uses {via}, which is not a host address in {link}");
        return Err(source.error(via_at, what, "use the address of the router"));
    }
    if let Some(link) = segment.on_link().find(|p| p.covers(to)) {
        let what = format!("the route to {to} is never used: hosts of {link} are on the segment itself");
        return Err(source.error(to_at, what, "remove the route or the subnet"));
    }
    if segment.routes.iter().any(|r| r.to == to) {
        let what = format!("segment `{}` has two routes to {to}", segment.name);
        return Err(source.error(to_at, what, "keep one of the two"));
    }
    Ok(Some(Route { to, via }))
}

/// Checks of segments against the devices and against each other.
struct Check<'c> {
    source: &'c Source<'c>,
    infiniband: &'c RawInfiniBand,
    settings: &'c InfiniBand,
}

impl Check<'_> {
    /// Returns the location of a segment's key, of its default in [infiniband], or of the segment.
    fn place<T>(
        &self,
        segment: &Placed<'_>,
        key: impl Fn(&RawSegment) -> Option<&Spanned<T>>,
        default: Option<&Spanned<T>>,
    ) -> Range<usize> {
        let own = segment.raw.and_then(|raw| key(raw.get_ref()));
        own.or(default).map_or_else(|| segment.span(), Spanned::span)
    }

    /// Checks that the software ConnectX has the port.
    fn device(&self, one: &Placed<'_>) -> Result<(), ConfigError> {
        let written = usize::from(self.infiniband.soft.is_some())
            + self.infiniband.soft_device.as_ref().map_or(0, Vec::len);
        // Devices with errors are not complete.
        if !self.settings.is_soft() || self.settings.soft.is_empty() || self.settings.soft.len() != written {
            return Ok(());
        }
        let Some(device) = self.settings.soft_device(one.segment.device.as_deref()) else {
            let at = self.place(one, |raw| raw.device.as_ref(), self.infiniband.device.as_ref());
            let name = one.segment.device.as_deref().unwrap_or_default();
            let what = format!("there is no software ConnectX `{name}`");
            let known: Vec<&str> = self.settings.soft.iter().map(|d| d.name.as_str()).collect();
            let remedy =
                format!("the devices are {}; add others with [[infiniband.soft-device]]", known.join(", "));
            return Err(self.source.error(at, what, remedy));
        };
        if usize::from(one.segment.port) > device.ports.len() {
            let at = self.place(one, |raw| raw.port.as_ref(), self.infiniband.port.as_ref());
            let (name, ports) = (&device.name, device.ports.len());
            let what = format!(
                "the software ConnectX `{name}` has {ports} port(s), so there is no port {}",
                one.segment.port
            );
            return Err(self.source.error(at, what, format!("count from 1, or add a port to `{name}`")));
        }
        Ok(())
    }

    /// Checks that two segments do not use the same resources.
    fn pair(&self, first: &Placed<'_>, second: &Placed<'_>) -> Result<(), ConfigError> {
        // Names derived from equal VLANs are less helpful than the error about the VLANs.
        if second.raw.is_some_and(|raw| raw.get_ref().name.is_some()) {
            self.names(first, second)?;
        }
        self.vlans(first, second)?;
        self.partitions(first, second)?;
        self.names(first, second)
    }

    fn names(&self, first: &Placed<'_>, second: &Placed<'_>) -> Result<(), ConfigError> {
        if first.segment.name != second.segment.name {
            return Ok(());
        }
        let at = self.place(second, |raw| raw.name.as_ref(), None);
        let what = format!("two segments are called {}", self.named(first));
        Err(self.source.error(at, what, "give one of them another name"))
    }

    fn vlans(&self, first: &Placed<'_>, second: &Placed<'_>) -> Result<(), ConfigError> {
        let (a, b) = (&first.segment, &second.segment);
        if a.ethernet.is_none() != b.ethernet.is_none() {
            let unnamed = if a.ethernet.is_none() { first } else { second };
            let what = format!(
                "segment `{}` does not say which Ethernet port is its own, as others do",
                unnamed.segment.name
            );
            let remedy = "add ethernet = \"NAME\" to it, or port = \"NAME\" to [ethernet]";
            return Err(self.source.error(unnamed.span(), what, remedy));
        }
        if a.ethernet != b.ethernet || a.vlan != b.vlan {
            return Ok(());
        }
        let of = a.ethernet.as_ref().map(|port| format!(" of `{port}`")).unwrap_or_default();
        let what = match a.vlan {
            Some(vlan) => {
                format!("VLAN {vlan}{of} is `{}`'s, and already that of {}", b.name, self.named(first))
            }
            None => {
                format!("what has no tag{of} is `{}`'s, and already that of {}", b.name, self.named(first))
            }
        };
        let at = self.place(second, |raw| raw.vlan.as_ref(), None);
        Err(self.source.error(at, what, "give one of them another vlan, or another Ethernet port"))
    }

    fn partitions(&self, first: &Placed<'_>, second: &Placed<'_>) -> Result<(), ConfigError> {
        let (a, b) = (&first.segment, &second.segment);
        let (on_a, on_b) = (self.device_name(a), self.device_name(b));
        if on_a.is_none() != on_b.is_none() {
            let unnamed = if on_a.is_none() { first } else { second };
            let what = format!(
                "segment `{}` does not say which InfiniBand device is its own, as others do",
                unnamed.segment.name
            );
            let remedy = "add device = \"NAME\" to it, or to [infiniband]";
            return Err(self.source.error(unnamed.span(), what, remedy));
        }
        // All of them are full members, so equal keys are equal partitions.
        if on_a != on_b || a.port != b.port || a.pkey != b.pkey {
            return Ok(());
        }
        let of = on_a.map(|device| format!(" of `{device}`")).unwrap_or_default();
        let what = format!(
            "P_Key {} on port {}{of} is `{}`'s, and already that of {}",
            a.pkey,
            a.port,
            b.name,
            self.named(first)
        );
        let at = self.place(second, |raw| raw.pkey.as_ref(), None);
        Err(self.source.error(at, what, "give one of them another pkey, or another port"))
    }

    /// Returns a segment's name with its line.
    fn named(&self, segment: &Placed<'_>) -> String {
        format!("`{}` (line {})", segment.segment.name, self.source.line(&segment.span()))
    }

    /// Returns the device name; `None` is the first device of the host.
    fn device_name<'s>(&'s self, segment: &'s Segment) -> Option<&'s str> {
        match segment.device.as_deref() {
            None if self.settings.is_soft() => self.settings.soft.first().map(|d| d.name.as_str()),
            name => name,
        }
    }
}
