package config

import (
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// maxWarmUp is the maximum length of a warm-up command.
const maxWarmUp = 1000

// option is one key of the configuration.
type option struct {
	key   string // in the file; a dot stands for a nested mapping
	help  string // its purpose, in a few words
	field func(c *Config) value
	check func(c Config) string // the remedy for an invalid value, or ""
}

// env is the option's environment variable.
func (o option) env() string {
	return "HARVEST_" + strings.ToUpper(strings.ReplaceAll(o.key, ".", "_"))
}

// opt makes the option of a field. check returns the remedy for an invalid value, or "".
func opt[T any](key, help string, at func(c *Config) *T, check func(T) string) option {
	return option{key, help, func(c *Config) value { return valueOf(at(c)) },
		func(c Config) string { return check(*at(&c)) }}
}

// options lists every key, in the order in which people read them.
var options = []option{
	opt("data", "data directory", func(c *Config) *string { return &c.Data }, absolute),
	opt("engine", "engine of sandboxes: gvisor, kubernetes, modal or fake",
		func(c *Config) *string { return &c.Engine }, oneOf(Engines...)),
	opt("isolation.allowed",
		"kinds of isolation that requests may choose: gvisor, which gives each sandbox a kernel of its own, and "+
			"container, which is faster and shares this machine's kernel",
		func(c *Config) *[]string { return &c.Isolation.Allowed }, func(all []string) string {
			for _, kind := range all {
				if remedy := oneOf(Isolations...)(kind); remedy != "" {
					return remedy
				}
			}
			return ""
		}),
	opt("isolation.default", "kind of isolation of requests that choose none",
		func(c *Config) *string { return &c.Isolation.Default }, oneOf(Isolations...)),
	opt("platform", "platform of gVisor, which intercepts system calls: systrap, kvm or ptrace",
		func(c *Config) *string { return &c.Platform }, oneOf(Platforms...)),
	opt("setuid", "setuid programs such as sudo gain privileges inside sandboxes of the engine gvisor",
		func(c *Config) *bool { return &c.Setuid }, anything),
	opt("limits.cpu", "cores of a sandbox",
		func(c *Config) *float64 { return &c.Limits.CPU },
		between[float64](0.05, 1024, "a number of cores from 0.05 to 1024")),
	opt("limits.memory", "memory of a sandbox",
		func(c *Config) *int64 { return &c.Limits.Memory },
		between[int64](32<<20, 1<<50, "a size of at least 32MiB, such as 2GiB")),
	opt("limits.disk", "maximum size of the files that a sandbox writes outside of volumes",
		func(c *Config) *int64 { return &c.Limits.Disk },
		between[int64](1<<20, 1<<50, "a size of at least 1MiB, such as 10GiB")),
	opt("limits.processes", "maximum number of processes of a sandbox",
		func(c *Config) *int { return &c.Limits.Processes }, between[int](8, 1<<22, "a number from 8 to 4194304")),
	opt("limits.files", "maximum number of open files of a process",
		func(c *Config) *int { return &c.Limits.Files }, between[int](32, 1<<20, "a number from 32 to 1048576")),
	opt("limits.volume_files",
		"maximum number of files and directories of a volume, checked when a sandbox creates more; 0 means one for "+
			"each 16 KiB of limits.disk, and at least 200000",
		func(c *Config) *int { return &c.Limits.VolumeFiles },
		func(v int) string {
			if v == 0 {
				return ""
			}
			return between[int](100, 1<<30, "a number from 100 to 1073741824, or 0 for the default")(v)
		}),
	opt("timeout", "maximum lifetime of a sandbox", func(c *Config) *time.Duration { return &c.Timeout }, positive),
	opt("idle_timeout",
		"time without commands, terminals and connections to ports after which a sandbox ends; 0 means never",
		func(c *Config) *time.Duration { return &c.IdleTimeout }, positiveOrZero),
	opt("suspended_timeout", "how long a sandbox may be suspended; after it, the sandbox ends",
		func(c *Config) *time.Duration { return &c.SuspendedTimeout },
		func(d time.Duration) string {
			if d >= time.Second && d <= 365*24*time.Hour {
				return ""
			}
			return "write a duration from 1s to 8760h, which is a year"
		}),
	opt("exec_timeout", "time limit of a command",
		func(c *Config) *time.Duration { return &c.ExecTimeout }, positive),
	opt("usage_interval", "interval at which the usage of running sandboxes is measured",
		func(c *Config) *time.Duration { return &c.UsageInterval }, positive),
	opt("quotas.sandboxes", "maximum number of sandboxes at once; 0 means no limit",
		func(c *Config) *int { return &c.Quotas.Sandboxes },
		between[int](0, 1<<20, "a number from 0, which means no limit, to 1048576")),
	opt("quotas.cpu", "maximum number of cores of all sandboxes together; 0 means no limit",
		func(c *Config) *float64 { return &c.Quotas.CPU },
		between[float64](0, 1<<20, "a number of cores, or 0 for no limit")),
	opt("quotas.memory", "maximum memory of all sandboxes together; 0 means no limit",
		func(c *Config) *int64 { return &c.Quotas.Memory },
		between[int64](0, 1<<60, "a size such as 64GiB, or 0 for no limit")),
	opt("quotas.volumes", "maximum number of volumes of an account on this machine; 0 means no limit",
		func(c *Config) *int { return &c.Quotas.Volumes },
		between[int](0, 1<<20, "a number from 0, which means no limit, to 1048576")),
	opt("pool", "number of sandboxes booted ahead of need; 0 means none",
		func(c *Config) *int { return &c.Pool }, between[int](0, 256, "a number from 0 to 256")),
	opt("boots",
		"maximum number of sandboxes that boot at once, in the order of requests; 0 means two for each core of this "+
			"machine (at Modal: no limit)",
		func(c *Config) *int { return &c.Boots }, between[int](0, 1024, "a number from 0 to 1024")),
	opt("pool_warm_up",
		"command, split at spaces, that runs as the user \"nobody\" in sandboxes of the pool if the image has it, so "+
			"that the first command starts faster; empty means none",
		func(c *Config) *string { return &c.PoolWarmUp }, func(v string) string {
			if strings.ContainsRune(v, 0) || len(v) > maxWarmUp {
				return "write a short command, such as python3 -c pass"
			}
			return ""
		}),
	opt("output_bytes", "maximum stored output of each command; older output is dropped",
		func(c *Config) *int64 { return &c.OutputBytes },
		between[int64](64<<10, 1<<40, "a size of at least 64KiB, such as 64MiB")),
	opt("build_cache", "maximum size of cached results of image builds",
		func(c *Config) *int64 { return &c.BuildCache },
		between[int64](0, 1<<50, "a size such as 20GiB, or 0 to keep nothing")),
	opt("prices.cpu_core_second", "price of a core for a second",
		func(c *Config) *float64 { return &c.Prices.CPUCoreSecond }, between[float64](0, 1e6, "a price, or 0")),
	opt("prices.memory_gib_second", "price of a GiB of memory for a second",
		func(c *Config) *float64 { return &c.Prices.MemoryGiBSecond }, between[float64](0, 1e6, "a price, or 0")),
	opt("prices.gpu_second", "price of a GPU for a second, by its kind; other kinds cost nothing",
		func(c *Config) *map[string]float64 { return &c.Prices.GPUSecond }, func(v map[string]float64) string {
			for _, price := range v {
				if problem := between[float64](0, 1e6, "prices of at least 0")(price); problem != "" {
					return problem
				}
			}
			return ""
		}),
	opt("prices.currency", "currency of the prices", func(c *Config) *string { return &c.Prices.Currency }, currency),
	opt("refresh", "while harvest up runs, build the base image anew every half hour, and clear old caches",
		func(c *Config) *bool { return &c.Refresh }, anything),
	opt("idle_exit", "time without use after which a server in the background ends; 0 means never",
		func(c *Config) *time.Duration { return &c.IdleExit }, positiveOrZero),
	opt("certificate_dir",
		"directory of certificate authorities of this machine that sandboxes trust; empty means none",
		func(c *Config) *string { return &c.CertificateDir }, absoluteOrNone),
	opt("registries.mirrors",
		"mirrors to try before a registry itself: docker.io=mirror.example.org, separated by commas",
		func(c *Config) *[]string { return &c.Registries.Mirrors }, mirrors),
	opt("registries.insecure", "registries that may be used without TLS: host:port, separated by commas",
		func(c *Config) *[]string { return &c.Registries.Insecure }, hosts),
	opt("connect.allow",
		"networks beside the internet that accounts may make the server connect to: CIDRs, separated by commas",
		func(c *Config) *[]string { return &c.Connect.Allow }, func(v []string) string {
			_, err := Prefixes(v)
			if err != nil {
				return "write CIDRs separated by commas, such as 10.1.0.0/16"
			}
			return ""
		}),
	opt("image_limits.bytes", "maximum unpacked size of an image of a registry",
		func(c *Config) *int64 { return &c.ImageLimits.Bytes },
		between[int64](1<<20, 1<<50, "a size of at least 1MiB, such as 32GiB")),
	opt("image_limits.files", "maximum number of files of an image of a registry",
		func(c *Config) *int { return &c.ImageLimits.Files },
		between[int](100, 1<<30, "a number from 100 to 1073741824")),
	opt("image_gc.age", "time without use after which unnamed images are removed, checked once a day; 0 means never",
		func(c *Config) *time.Duration { return &c.ImageGC.Age }, hoursOrZero),
	opt("image_gc.size",
		"maximum size of all images; the least recently used unnamed ones beyond it are removed; 0 means no limit",
		func(c *Config) *int64 { return &c.ImageGC.Size },
		between[int64](0, 1<<60, "a size such as 50GiB, or 0 for no limit")),
	opt("image_gc.sessions",
		"time after the end of a session after which its files are removed, checked once a day; 0 means never",
		func(c *Config) *time.Duration { return &c.ImageGC.Sessions }, hoursOrZero),
	opt("server.listen", "TCP address of harvest up, host:port; none for the Unix socket only",
		func(c *Config) *string { return &c.Server.Listen }, listenable),
	opt("server.tls_cert", "file of a TLS certificate, with its chain",
		func(c *Config) *string { return &c.Server.Cert }, absoluteOrNone),
	opt("server.tls_key", "file of the certificate's key",
		func(c *Config) *string { return &c.Server.Key }, absoluteOrNone),
	opt("server.acme_domain", "domain name of this machine, to obtain a certificate for",
		func(c *Config) *string { return &c.Server.ACMEDomain }, func(v string) string {
			if v == "" {
				return ""
			}
			return names([]string{v})
		}),
	opt("server.acme_email", "mail address for the certificate authority",
		func(c *Config) *string { return &c.Server.ACMEEmail }, func(v string) string {
			if v == "" || mailPattern().MatchString(v) {
				return ""
			}
			return "write a mail address, such as ops@example.org"
		}),
	opt("server.acme_url", "directory URL of the certificate authority; empty means Let's Encrypt",
		func(c *Config) *string { return &c.Server.ACMEURL }, func(v string) string {
			if v == "" || strings.HasPrefix(v, "https://") {
				return ""
			}
			return "write a URL that begins with https://"
		}),
	opt("server.insecure", "listen without TLS even if other machines can connect",
		func(c *Config) *bool { return &c.Server.Insecure }, anything),
	opt("server.public_names", "names of the server beside its addresses, separated by commas",
		func(c *Config) *[]string { return &c.Server.Names }, names),
	opt("server.trusted_proxies",
		"addresses or CIDRs of trusted proxies, whose X-Forwarded headers are used, separated by commas",
		func(c *Config) *[]string { return &c.Server.Proxies }, func(v []string) string {
			_, err := Prefixes(v)
			if err != nil {
				return errors.Message(err)
			}
			return ""
		}),
	opt("server.rate_limit", "maximum number of requests per second of each key; 0 means no limit",
		func(c *Config) *float64 { return &c.Server.Rate },
		between[float64](0, 1e6, "a number from 0, which means no limit")),
	opt("server.public_url",
		"URL of the server for browsers, if a proxy is in front of it; empty means the listen address",
		func(c *Config) *string { return &c.Server.PublicURL }, siteURL),
	opt("server.ssh_listen",
		"address of harvest up for clients of SSH with a key of harvest key add-ssh, host:port; none disables it",
		func(c *Config) *string { return &c.Server.SSHListen }, listenable),
	opt("ports.domain", "wildcard domain for the host names of ports of sandboxes; empty means none",
		func(c *Config) *string { return &c.Ports.Domain }, wildcard),
	opt("modal.listen", "address for Modal's protocol, host:port; none disables it",
		func(c *Config) *string { return &c.Modal.Listen }, listenable),
	opt("modal.url", "URL of the server for programs written for Modal; empty means the listen address",
		func(c *Config) *string { return &c.Modal.URL }, siteURL),
	opt("modal.token_id",
		"ID of the token at Modal, for the engine modal; empty means MODAL_TOKEN_ID or ~/.modal.toml",
		func(c *Config) *string { return &c.Modal.TokenID }, printable),
	opt("modal.token_secret", "secret of the token at Modal; empty means MODAL_TOKEN_SECRET or ~/.modal.toml",
		func(c *Config) *Secret { return &c.Modal.TokenSecret }, func(v Secret) string {
			if v.Reveal() == logf.Hidden {
				return "write the secret itself; best as HARVEST_MODAL_TOKEN_SECRET"
			}
			return printable(v.Reveal())
		}),
	opt("modal.environment", "environment at Modal, for the engine modal; empty means the profile's",
		func(c *Config) *string { return &c.Modal.Environment }, printable),
	opt("modal.app", "prefix of the names of the engine modal's apps at Modal, one for each account",
		func(c *Config) *string { return &c.Modal.App }, filled("the name of an app, such as harvest")),
	opt("modal.image", "image of a registry that base means with the engine modal",
		func(c *Config) *string { return &c.Modal.Image },
		filled("an image with sh and python3, such as python:3.13-slim-bookworm")),
	opt("kubernetes.kubeconfig",
		"kubectl's configuration, for the engine kubernetes; empty means KUBECONFIG, ~/.kube/config, or the service "+
			"account of the server's own pod",
		func(c *Config) *string { return &c.Kubernetes.Kubeconfig }, absoluteOrNone),
	opt("kubernetes.context", "context of that configuration; empty means its current one",
		func(c *Config) *string { return &c.Kubernetes.Context }, printable),
	opt("kubernetes.namespace", "namespace of the pods; empty means the context's",
		func(c *Config) *string { return &c.Kubernetes.Namespace }, printable),
	opt("kubernetes.reach",
		"how the server connects to pods: direct to their addresses, forward through the API server, or auto, "+
			"which is direct within the cluster and forward elsewhere",
		func(c *Config) *string { return &c.Kubernetes.Reach }, oneOf(Reaches...)),
	opt("kubernetes.image", "image of the pods, which make image makes",
		func(c *Config) *string { return &c.Kubernetes.Image }, printable),
	opt("kubernetes.pull_policy",
		"when nodes pull that image: Always, IfNotPresent or Never; empty means Kubernetes' default",
		func(c *Config) *string { return &c.Kubernetes.PullPolicy }, oneOf(PullPolicies...)),
	opt("kubernetes.pull_secrets",
		"names of the namespace's secrets for the registry of that image, separated by commas",
		func(c *Config) *[]string { return &c.Kubernetes.PullSecrets }, names),
	opt("kubernetes.service_account",
		"service account of the pods, which get no token; empty means the namespace's default",
		func(c *Config) *string { return &c.Kubernetes.ServiceAccount }, printable),
	opt("kubernetes.runtime_class", "runtime class of the pods, such as kata; empty means none",
		func(c *Config) *string { return &c.Kubernetes.RuntimeClass }, printable),
	opt("kubernetes.priority_class", "priority class of the pods; empty means none",
		func(c *Config) *string { return &c.Kubernetes.PriorityClass }, printable),
	opt("kubernetes.node_selector", "labels of the nodes for pods, as LABEL=VALUE, separated by commas",
		func(c *Config) *[]string { return &c.Kubernetes.NodeSelector }, func(all []string) string {
			for _, pair := range all {
				if label, _, ok := strings.Cut(pair, "="); !ok || label == "" || printable(pair) != "" {
					return "write LABEL=VALUE, such as pool=sandboxes"
				}
			}
			return ""
		}),
	opt("kubernetes.tolerations",
		"taints of nodes on which pods may run, as KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT, separated by commas",
		func(c *Config) *[]string { return &c.Kubernetes.Tolerations }, func(all []string) string {
			for _, taint := range all {
				if !taintForm().MatchString(taint) {
					return "write a taint, such as dedicated=sandboxes:NoSchedule"
				}
			}
			return ""
		}),
	opt("kubernetes.user_namespace", "give each pod a user namespace of its own (hostUsers: false)",
		func(c *Config) *bool { return &c.Kubernetes.UserNamespace }, anything),
	opt("kubernetes.node_addresses",
		"addresses of nodes that Kubernetes does not know, separated by commas; sandboxes reach these, and their own "+
			"node, only by a rule for the exact address",
		func(c *Config) *[]string { return &c.Kubernetes.NodeAddresses }, func(all []string) string {
			for _, text := range all {
				if _, err := netip.ParseAddr(text); err != nil {
					return "write addresses such as 203.0.113.7"
				}
			}
			return ""
		}),
	opt("kubernetes.cpu", "cores that each pod requests of its node; 0 means its limit",
		func(c *Config) *float64 { return &c.Kubernetes.CPU }, between[float64](0, 1024,
			"a number of cores, such as 0.1")),
	opt("kubernetes.memory", "memory that each pod requests of its node; 0 means its limit",
		func(c *Config) *int64 { return &c.Kubernetes.Memory }, between[int64](0, 1<<50, "a size, such as 256MiB")),
	opt("kubernetes.cache",
		"directory of each node in which pods share files of images; empty means that each pod gets its own",
		func(c *Config) *string { return &c.Kubernetes.Cache }, absoluteOrNone),
	opt("kubernetes.grace",
		"time of an evicted pod in which its sandbox is carried over to another one; 0 means that it ends",
		func(c *Config) *time.Duration { return &c.Kubernetes.Grace }, positiveOrZero),
	opt("kubernetes.max_cpu", "maximum number of cores of one sandbox; a node should have as many",
		func(c *Config) *float64 { return &c.Kubernetes.MaxCPU },
		between[float64](0.01, 1024, "a number of cores, such as 8")),
	opt("kubernetes.max_memory", "maximum memory of one sandbox; a node should have as much",
		func(c *Config) *int64 { return &c.Kubernetes.MaxMemory },
		between[int64](1<<24, 1<<50, "a size, such as 32GiB")),
	opt("oidc.issuer", "URL of the OpenID Connect provider for sign-in; empty means none",
		func(c *Config) *string { return &c.OIDC.Issuer }, issuer),
	opt("oidc.client_id", "client ID of the server at the provider",
		func(c *Config) *string { return &c.OIDC.ClientID }, printable),
	opt("oidc.client_secret", "client secret of the server at the provider; empty for a public client",
		func(c *Config) *Secret { return &c.OIDC.ClientSecret }, func(v Secret) string {
			if v.Reveal() == logf.Hidden {
				return "write the secret itself; best as HARVEST_OIDC_CLIENT_SECRET"
			}
			return printable(v.Reveal())
		}),
	opt("oidc.scopes", "scopes to request from the provider, separated by commas",
		func(c *Config) *[]string { return &c.OIDC.Scopes }, scopes),
	opt("oidc.groups_claim", "claim that lists a person's groups",
		func(c *Config) *string { return &c.OIDC.Groups }, func(v string) string {
			if v == "" {
				return "write the name of a claim, such as groups"
			}
			return printable(v)
		}),
	opt("oidc.allow", "people who may sign in, as WHO=ACCOUNT[:ROLE]; the first match counts",
		func(c *Config) *[]string { return &c.OIDC.Allow }, allowed),
	opt("agents.default", "agent of sessions that name none, such as claude or codex, or a command that speaks ACP",
		func(c *Config) *string { return &c.Agents.Default }, func(v string) string {
			if strings.TrimSpace(v) == "" || strings.HasPrefix(v, "-") || strings.ContainsFunc(v, unicode.IsControl) {
				return "write the name of an agent, such as claude"
			}
			return ""
		}),
	opt("agents.custom",
		"further agents that speak ACP, as NAME.FIELD=VALUE with the fields command, install and env.VARIABLE",
		func(c *Config) *[]string { return &c.Agents.Custom }, customAgents),
	opt("agents.versions",
		"exact versions of built-in agents, as NAME=VERSION; they are installed into sandboxes",
		func(c *Config) *[]string { return &c.Agents.Versions }, agentVersions),
	opt("agents.image", "image of the sandboxes of sessions",
		func(c *Config) *string { return &c.Agents.Image }, func(v string) string {
			odd := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
			if v != "" && !strings.HasPrefix(v, "-") &&
				!strings.ContainsFunc(v, odd) {
				return ""
			}
			return "write the name of an image, such as agent"
		}),
	opt("agents.spares",
		"number of spare sessions, with sandbox, repository and agent, that are made ahead for each kind in use; 0 "+
			"means none",
		func(c *Config) *int { return &c.Agents.Spares }, between[int](0, 4, "a number from 0 to 4")),
	opt("agents.spare_life", "time after which an unused spare session ends",
		func(c *Config) *time.Duration { return &c.Agents.SpareLife }, positive),
	opt("agents.upload_bytes", "maximum size of the commits that a client sends for a session",
		func(c *Config) *int64 { return &c.Agents.UploadBytes },
		between[int64](1<<20, 1<<50, "a size of at least 1MiB, such as 4GiB")),
	opt("logins.providers",
		"settings of the providers of harvest login, as PROVIDER.FIELD=VALUE, such as github.client_id=Iv1.0123",
		func(c *Config) *[]string { return &c.Logins.Providers }, func(all []string) string {
			for _, text := range all {
				where, _, given := strings.Cut(text, "=")
				if name, field, dotted := strings.Cut(where, "."); !given || !dotted || name == "" || field == "" {
					return "write PROVIDER.FIELD=VALUE, such as github.client_id=Iv1.0123"
				}
			}
			return ""
		}),
	opt("notify.webhook", "URL that gets each new item of an inbox; empty means none",
		func(c *Config) *Secret { return &c.Notify.Webhook }, webhook),
	opt("notify.secret", "key of the webhook's signatures; empty means no signatures",
		func(c *Config) *Secret { return &c.Notify.Secret }, webhookKey),
	opt("notify.command",
		"command that gets each new item of an inbox on its standard input, split at spaces; empty means none",
		func(c *Config) *string { return &c.Notify.Command }, program),
	opt("notify.kinds", "kinds of items that webhook and command get: "+strings.Join(NotifyKinds, ", "),
		func(c *Config) *[]string { return &c.Notify.Kinds }, func(all []string) string {
			for _, kind := range all {
				if remedy := oneOf(NotifyKinds...)(kind); remedy != "" {
					return remedy
				}
			}
			return ""
		}),
	opt("notify.accounts", "accounts whose items webhook and command get; * means all",
		func(c *Config) *[]string { return &c.Notify.Accounts }, notifiedAccounts),
	opt("model.url", "address of the model's API; empty means ANTHROPIC_BASE_URL, or the provider's own",
		func(c *Config) *string { return &c.Model.URL }, func(v string) string {
			u, err := url.Parse(v)
			if v == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
				u.User == nil {
				return ""
			}
			return "write a URL such as https://api.anthropic.com, without a password"
		}),
	opt("model.gateway", "agents send requests for models through the server, which alone has the key",
		func(c *Config) *bool { return &c.Model.Gateway }, anything),
	opt("model.prices",
		"prices of models in USD per million tokens, as MODEL=INPUT/OUTPUT[/CACHED], such as my-model=1.5/6",
		func(c *Config) *[]string { return &c.Model.Prices }, func(all []string) string {
			for _, text := range all {
				name, values, _ := strings.Cut(text, "=")
				if n := strings.Count(values, "/"); name == "" || n < 1 || n > 2 {
					return "write MODEL=INPUT/OUTPUT in USD per million tokens, such as my-model=1.5/6"
				}
			}
			return ""
		}),
	opt("s3.bucket", "bucket for volumes without a bucket of their own; empty means none",
		func(c *Config) *string { return &c.S3.Bucket }, bucket),
	opt("s3.prefix", "prefix of keys in the bucket; account and volume follow",
		func(c *Config) *string { return &c.S3.Prefix }, printable),
	opt("s3.endpoint",
		"address of an S3 server; empty means the secret's, or AWS; embedded means one that stores buckets in the "+
			"data directory",
		func(c *Config) *string { return &c.S3.Endpoint }, func(v string) string {
			if v == Embedded {
				return ""
			}
			return siteURL(v)
		}),
	opt("s3.region", "region of the bucket; empty means the secret's",
		func(c *Config) *string { return &c.S3.Region }, printable),
	opt("s3.path_style", "put the bucket into the path of URLs, as most servers but AWS require",
		func(c *Config) *bool { return &c.S3.PathStyle }, anything),
	opt("s3.ca_file", "PEM file of certificate authorities to trust for S3, beside the system's",
		func(c *Config) *string { return &c.S3.CAFile }, absoluteOrNone),
	opt("s3.proxy", "HTTP proxy for S3; empty means HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
		func(c *Config) *string { return &c.S3.Proxy }, siteURL),
	opt("s3.secret", "secret with the bucket's credentials",
		func(c *Config) *string { return &c.S3.Secret }, printable),
	opt("s3.packs", "store copies of small files in packs, from which empty volumes are filled many times faster",
		func(c *Config) *bool { return &c.S3.Packs }, anything),
	opt("s3.max_delete_files",
		"minimum number of files for the check of --delete-many: a sync that deletes most files of a side needs it",
		func(c *Config) *int { return &c.S3.MaxDeleteFiles },
		between[int](1, 1<<30, "a number from 1 to 1073741824")),
	opt("s3.max_delete_percent",
		"percentage of a side's files above which such a sync needs --delete-many; 100 means never",
		func(c *Config) *int { return &c.S3.MaxDeletePercent }, between[int](1, 100, "a percentage from 1 to 100")),
	opt("log.level", "minimum level of the log: debug, info, warn or error",
		func(c *Config) *slog.Level { return &c.Log.Level }, anything),
	opt("log.format", "format of the log: text or json",
		func(c *Config) *string { return &c.Log.Format }, oneOf("text", "json")),
}

func find(key string) (option, bool) {
	i := slices.IndexFunc(options, func(o option) bool { return o.key == key })
	if i < 0 {
		return option{}, false
	}
	return options[i], true
}

// nearest returns the option most similar to a misspelled key.
func nearest(key string) string {
	last := key[strings.LastIndex(key, ".")+1:]
	for _, o := range options {
		if o.key[strings.LastIndex(o.key, ".")+1:] == last ||
			strings.ReplaceAll(o.key, "_", "") == strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key)) {
			return "; did you mean " + o.key + "?"
		}
	}
	return "; `harvest config` lists them"
}

func absolute(path string) string {
	if filepath.IsAbs(path) && filepath.Clean(path) == path && path != "/" {
		return ""
	}
	return "write an absolute path, such as /srv/harvest"
}

func anything[T any](T) string { return "" }

func oneOf(allowed ...string) func(string) string {
	return func(text string) string {
		if slices.Contains(allowed, text) {
			return ""
		}
		return "write " + strings.Join(allowed, " or ")
	}
}

func between[N int | int64 | float64](low, high float64, want string) func(N) string {
	return func(n N) string {
		if float64(n) >= low && float64(n) <= high { // false for NaN
			return ""
		}
		return "write " + want
	}
}

// longest is the maximum of all times. Package fleet accepts no longer ones.
const longest = 7 * 24 * time.Hour

func positive(d time.Duration) string {
	if d >= time.Second && d <= longest {
		return ""
	}
	return "write a duration from 1s to 168h, which is a week"
}

func positiveOrZero(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return positive(d)
}

var hostPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?$`)

func hosts(all []string) string {
	for _, host := range all {
		if !hostPattern().MatchString(host) {
			return "write hosts, such as 10.0.0.1:5000"
		}
	}
	return ""
}

func mirrors(all []string) string {
	for _, pair := range all {
		host, mirror, _ := strings.Cut(pair, "=")
		at, _, _ := strings.Cut(mirror, "/")
		if hosts([]string{host, at}) != "" {
			return "write a registry and its mirror, such as docker.io=mirror.example.org"
		}
	}
	return ""
}

var currencyPattern = pattern.New(`^[A-Z]{3}$`)

func currency(text string) string {
	if currencyPattern().MatchString(text) {
		return ""
	}
	return "write a code of three letters, such as USD"
}

func absoluteOrNone(path string) string {
	if path == "" {
		return ""
	}
	return absolute(path)
}

// NoListen is the value of server.listen for the Unix socket only.
const NoListen = "none"

func listenable(text string) string {
	_, port, err := net.SplitHostPort(text)
	n, number := strconv.Atoi(port)
	if text == NoListen || err == nil && number == nil && n >= 0 && n < 1<<16 {
		return ""
	}
	return "write an address and a port, such as 127.0.0.1:7777, or none"
}

var mailPattern = pattern.New(`^[!-?A-~]+@[!-?A-~]+$`)

// namePattern is a host name in lower case, without a port.
var namePattern = pattern.New(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func names(all []string) string {
	for _, name := range all {
		if !namePattern().MatchString(name) || len(name) > 253 {
			return "write host names in lower case, such as harvest.example.org"
		}
	}
	return ""
}

// Prefixes parses addresses and CIDRs. An Invalid error contains the remedy.
func Prefixes(texts []string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if addr, e := netip.ParseAddr(text); e == nil {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, errors.Newf(errors.Invalid, "write addresses such as 10.0.0.1 or 10.0.0.0/8")
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

// hoursOrZero accepts 0 and durations of at least an hour.
func hoursOrZero(v time.Duration) string {
	if v == 0 || v >= time.Hour {
		return ""
	}
	return "write a duration of at least 1h, such as 168h, or 0"
}
