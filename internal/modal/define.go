package modal

import (
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Tags of the Fleet that identify sandboxes of this protocol. Clients cannot set them.
const (
	ownTag     = "modal/"
	tagApp     = ownTag + "app"
	tagEnv     = ownTag + "environment"
	tagName    = ownTag + "name"
	tagSidecar = ownTag + "sidecar-of"
	tagNumber  = ownTag + "number"  // of a sidecar, in its private network
	tagKey     = ownTag + "request" // a digest of the idempotency key and its owner

	tagGeneration   = ownTag + "generation" // firstGeneration, or nothing
	firstGeneration = "1"
)

// Defaults of Modal.
const (
	defaultLife = 300   // seconds
	longestLife = 86400 // seconds
)

// clouds and regions are the accepted values. They have no effect, because there is one machine.
var (
	clouds  = []string{"", "auto", "aws", "gcp", "oci", "azure", "nebius", "coreweave", "crusoe"}
	regions = pattern.New(`^(us|eu|ap|uk|ca|me|sa|af|mx|il|jp|in|au|br|asia|europe|northamerica|southamerica|australia|africa)(-[a-z0-9]+)*$`)
	domains = pattern.New(`^(\*\.)?([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.)*[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$`)
)

// request converts a definition to a request to the Fleet. The caller adds image, environment and volumes.
func request(def *pb.Sandbox) (spec.Request, error) {
	if err := possible(def); err != nil {
		return spec.Request{}, err
	}
	life := def.GetTimeoutSecs()
	if life == 0 {
		life = defaultLife
	}
	if life > longestLife {
		return spec.Request{}, errors.Newf(errors.Invalid, "Timeout must be at most %d seconds, got %d",
			longestLife, life)
	}
	if dir := def.GetWorkdir(); dir != "" && !strings.HasPrefix(dir, "/") {
		return spec.Request{}, errors.Newf(errors.Invalid, "workdir must be an absolute path, got: %.200s", dir)
	}
	network, err := networkOf(def.GetNetworkAccess(), def.GetBlockNetwork())
	if err != nil {
		return spec.Request{}, err
	}
	req := spec.Request{
		Workdir: def.GetWorkdir(), Network: network, TimeoutSeconds: float64(life),
		IdleTimeoutSeconds: float64(def.GetIdleTimeoutSecs()),
		SnapshotOnEnd:      option(def, "enable_exit_snapshot"),
		Disk:               int64(def.GetResources().GetEphemeralDiskMb()) << 20,
	}
	for _, p := range def.GetOpenPorts().GetPorts() {
		req.Ports = append(req.Ports, int(p.GetPort()))
	}
	limits(&req, def.GetResources())
	return req, nil
}

// limits applies the client's limits. A reservation becomes a limit if it exceeds the default.
func limits(req *spec.Request, r *pb.Resources) {
	if r.GetMilliCpuMax() > 0 {
		req.CPU = float64(r.GetMilliCpuMax()) / 1000
	}
	if r.GetMemoryMbMax() > 0 {
		req.Memory = int64(r.GetMemoryMbMax()) << 20
	}
	if req.CPU == 0 && r.GetMilliCpu() > 1000 {
		req.CPU = float64(r.GetMilliCpu()) / 1000
	}
	if req.Memory == 0 && r.GetMemoryMb() > 2048 {
		req.Memory = int64(r.GetMemoryMb()) << 20
	}
}

// possible returns an error if the definition is invalid or needs something unsupported.
func possible(def *pb.Sandbox) error {
	unsupported := func(cond bool, what, remedy string) error {
		if !cond {
			return nil
		}
		return errors.Remedy(errors.Newf(errors.Unsupported, "%s", what), "%s", remedy)
	}
	gpu := def.GetResources().GetGpuConfig()
	if gpu.GetGpuType() != "" || gpu.GetCount() > 0 {
		return noGPU()
	}
	if !slices.Contains(clouds, def.GetCloudProviderStr()) {
		return errors.Newf(errors.Invalid, "Invalid cloud provider: %.60s", def.GetCloudProviderStr())
	}
	for _, r := range def.GetSchedulerPlacement().GetRegions() {
		if !regions().MatchString(r) {
			return errors.Newf(errors.Invalid, "Invalid region: %.60s", r)
		}
	}
	for _, cidr := range def.GetInboundCidrAllowlist() {
		if _, err := netip.ParsePrefix(cidr); err != nil {
			return errors.Newf(errors.Invalid, "Invalid CIDR (inbound): %.60s", cidr)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(def.GetExperimentalOptionsV2())) {
		if value := def.GetExperimentalOptionsV2()[name]; strings.HasPrefix(name, "enable_") && value != "true" &&
			value != "false" {
			return errors.Newf(errors.Invalid, "experimental option '%.60s' must be a bool, got '%.60s'", name, value)
		}
	}
	if err := knownOptions(def); err != nil {
		return err
	}
	return errors.Join(
		unsupported(def.GetRuntime() == "vm", "there are no virtual machines here, sandboxes are gVisor's",
			"leave runtime out, or say \"gvisor\""),
		mountable(def),
		unsupported(len(def.GetNfsMounts()) > 0, "there are no network file systems here", "use a volume"),
		unsupported(def.GetI6PnEnabled(), "sandboxes do not reach one another here", "leave i6pn out"),
		unsupported(def.GetCustomDomain() != "", "tunnels have no domains of their own here",
			"leave custom_domain out"),
		unsupported(len(def.GetExperimentalOutboundPolicy().GetHeaderReplacements()) > 0,
			"headers of outbound requests are not replaced here", "give the sandbox the secret"),
		unsupported(def.GetIncludeX509Svid(), "sandboxes get no certificates here", "leave it out"),
	)
}

// experiments are the experimental options that have an effect.
var experiments = []string{"enable_docker", "enable_exit_snapshot"}

// knownOptions returns an error if an experimental option is set that has no effect here: it may restrict something.
func knownOptions(def *pb.Sandbox) error {
	set := maps.Clone(def.GetExperimentalOptionsV2())
	if set == nil {
		set = map[string]string{}
	}
	//lint:ignore SA1019 earlier clients set this field
	for name, on := range def.GetExperimentalOptions() {
		set[name] = strconv.FormatBool(on)
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if set[name] != "" && set[name] != "false" && !slices.Contains(experiments, name) {
			err := errors.Newf(errors.Unsupported, "the experimental option '%.60s' is not supported", name)
			return errors.Remedy(err, "leave it out; the supported ones are: %s", strings.Join(experiments, ", "))
		}
	}
	return nil
}

// architecture reports whether images for it run on this machine.
func architecture(a pb.Arch) bool {
	return a == pb.Arch_ARCH_UNSPECIFIED || a == map[string]pb.Arch{"amd64": pb.Arch_ARCH_X86_64,
		"arm64": pb.Arch_ARCH_AARCH64}[runtime.GOARCH]
}

// option reports whether an experimental option is set.
func option(def *pb.Sandbox, name string) bool {
	//lint:ignore SA1019 earlier clients set this field
	return def.GetExperimentalOptions()[name] || def.GetExperimentalOptionsV2()[name] == "true"
}

// networkOf returns the network policy that a client requests.
func networkOf(access *pb.NetworkAccess, blocked bool) (spec.Network, error) {
	switch access.GetNetworkAccessType() {
	case pb.NetworkAccess_BLOCKED:
		blocked = true
	case pb.NetworkAccess_ALLOWLIST:
		return allowlist(access)
	case pb.NetworkAccess_OPEN, pb.NetworkAccess_UNSPECIFIED:
	}
	if blocked {
		return spec.Network{Mode: "none"}, nil
	}
	return spec.Network{}, nil
}

// allowlist returns the policy of a client's lists. All addresses together with all names mean full internet
// access.
func allowlist(access *pb.NetworkAccess) (spec.Network, error) {
	n := spec.Network{Mode: "allow"}
	if slices.Contains(access.GetAllowedDomains(), "*") {
		if !slices.Contains(access.GetAllowedCidrs(), "0.0.0.0/0") {
			return n, errors.Remedy(errors.Newf(errors.Unsupported,
				"all domains cannot be allowed without all addresses"),
				"allow the CIDR 0.0.0.0/0 too, or name the domains")
		}
		return spec.Network{Mode: "default"}, nil
	}
	for _, text := range access.GetAllowedCidrs() {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			family := "IPv4"
			if strings.Contains(text, ":") {
				family = "IPv6"
			}
			return n, errors.Newf(errors.Invalid, "Invalid CIDR (outbound %s): %.60s", family, text)
		}
		n.Allow = append(n.Allow, prefix.Masked().String())
	}
	for _, name := range access.GetAllowedDomains() {
		if len(name) > 253 || !domains().MatchString(name) {
			return n, errors.Newf(errors.Invalid, "Invalid domain (outbound): %.80s", name)
		}
		n.Allow = append(n.Allow, strings.ToLower(name))
	}
	if len(n.Allow) == 0 { // the lists are empty
		n.Mode = "none"
	}
	return n, nil
}

// tagsOf converts a client's tags to the Fleet's.
func tagsOf(list []*pb.SandboxTag) (map[string]string, error) {
	tags := map[string]string{}
	for _, t := range list {
		if strings.HasPrefix(t.GetTagName(), ownTag) {
			return nil, errors.Newf(errors.Invalid, "Invalid tag name: '%.60s' is reserved", t.GetTagName())
		}
		tags[t.GetTagName()] = t.GetTagValue()
	}
	return tags, nil
}

// shownTags is the inverse of tagsOf.
func shownTags(tags map[string]string) []*pb.SandboxTag {
	var list []*pb.SandboxTag
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		if !strings.HasPrefix(name, ownTag) {
			list = append(list, pb.SandboxTag_builder{TagName: name, TagValue: tags[name]}.Build())
		}
	}
	return list
}
