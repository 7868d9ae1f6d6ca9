package config

import (
	"math"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/logf"
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

// options lists every key, in the order in which people read them.
var options = []option{
	{"data", "data directory",
		func(c *Config) value { return (*textValue)(&c.Data) },
		func(c Config) string { return absolute(c.Data) }},
	{"engine", "engine of sandboxes: gvisor, modal or fake",
		func(c *Config) value { return (*textValue)(&c.Engine) },
		func(c Config) string { return oneOf(c.Engine, Engines) }},
	{"platform", "platform of gVisor, which intercepts system calls: systrap, kvm or ptrace",
		func(c *Config) value { return (*textValue)(&c.Platform) },
		func(c Config) string { return oneOf(c.Platform, Platforms) }},
	{"setuid", "setuid programs such as sudo gain privileges inside sandboxes of the engine gvisor",
		func(c *Config) value { return (*boolValue)(&c.Setuid) },
		func(Config) string { return "" }},
	{"limits.cpu", "cores of a sandbox",
		func(c *Config) value { return (*numberValue)(&c.Limits.CPU) },
		func(c Config) string { return between(c.Limits.CPU, 0.05, 1024, "a number of cores from 0.05 to 1024") }},
	{"limits.memory", "memory of a sandbox",
		func(c *Config) value { return (*sizeValue)(&c.Limits.Memory) },
		func(c Config) string {
			return between(float64(c.Limits.Memory), 32<<20, 1<<50, "a size of at least 32MiB, such as 2GiB")
		}},
	{"limits.disk", "maximum size of the files that a sandbox writes outside of volumes",
		func(c *Config) value { return (*sizeValue)(&c.Limits.Disk) },
		func(c Config) string {
			return between(float64(c.Limits.Disk), 1<<20, 1<<50, "a size of at least 1MiB, such as 10GiB")
		}},
	{"limits.processes", "maximum number of processes of a sandbox",
		func(c *Config) value { return (*countValue)(&c.Limits.Processes) },
		func(c Config) string {
			return between(float64(c.Limits.Processes), 8, 1<<22, "a number from 8 to 4194304")
		}},
	{"limits.files", "maximum number of open files of a process",
		func(c *Config) value { return (*countValue)(&c.Limits.Files) },
		func(c Config) string {
			return between(float64(c.Limits.Files), 32, 1<<20, "a number from 32 to 1048576")
		}},
	{"limits.volume_files",
		"maximum number of files and directories of a volume, checked when a sandbox creates more; 0 means one for " +
			"each 16 KiB of limits.disk, and at least 200000",
		func(c *Config) value { return (*countValue)(&c.Limits.VolumeFiles) },
		func(c Config) string {
			if c.Limits.VolumeFiles == 0 {
				return ""
			}
			return between(float64(c.Limits.VolumeFiles), 100, 1<<30,
				"a number from 100 to 1073741824, or 0 for the default")
		}},
	{"timeout", "maximum lifetime of a sandbox",
		func(c *Config) value { return (*durationValue)(&c.Timeout) },
		func(c Config) string { return positive(c.Timeout) }},
	{"idle_timeout",
		"time without commands, terminals and connections to ports after which a sandbox ends; 0 means never",
		func(c *Config) value { return (*durationValue)(&c.IdleTimeout) },
		func(c Config) string { return positiveOrZero(c.IdleTimeout) }},
	{"exec_timeout", "time limit of a command",
		func(c *Config) value { return (*durationValue)(&c.ExecTimeout) },
		func(c Config) string { return positive(c.ExecTimeout) }},
	{"usage_interval", "interval at which the usage of running sandboxes is measured",
		func(c *Config) value { return (*durationValue)(&c.UsageInterval) },
		func(c Config) string { return positive(c.UsageInterval) }},
	{"quotas.sandboxes", "maximum number of sandboxes at once; 0 means no limit",
		func(c *Config) value { return (*countValue)(&c.Quotas.Sandboxes) },
		func(c Config) string {
			return between(float64(c.Quotas.Sandboxes), 0, 1<<20, "a number from 0, which means no limit, to 1048576")
		}},
	{"quotas.cpu", "maximum number of cores of all sandboxes together; 0 means no limit",
		func(c *Config) value { return (*numberValue)(&c.Quotas.CPU) },
		func(c Config) string {
			return between(c.Quotas.CPU, 0, 1<<20, "a number of cores, or 0 for no limit")
		}},
	{"quotas.memory", "maximum memory of all sandboxes together; 0 means no limit",
		func(c *Config) value { return (*sizeValue)(&c.Quotas.Memory) },
		func(c Config) string {
			return between(float64(c.Quotas.Memory), 0, 1<<60, "a size such as 64GiB, or 0 for no limit")
		}},
	{"quotas.volumes", "maximum number of volumes of an account on this machine; 0 means no limit",
		func(c *Config) value { return (*countValue)(&c.Quotas.Volumes) },
		func(c Config) string {
			return between(float64(c.Quotas.Volumes), 0, 1<<20, "a number from 0, which means no limit, to 1048576")
		}},
	{"pool", "number of sandboxes booted ahead of need; 0 means none",
		func(c *Config) value { return (*countValue)(&c.Pool) },
		func(c Config) string { return between(float64(c.Pool), 0, 256, "a number from 0 to 256") }},
	{"boots",
		"maximum number of sandboxes that boot at once, in the order of requests; 0 means two for each core of this " +
			"machine (at Modal: no limit)",
		func(c *Config) value { return (*countValue)(&c.Boots) },
		func(c Config) string { return between(float64(c.Boots), 0, 1024, "a number from 0 to 1024") }},
	{"pool_warm_up",
		"command, split at spaces, that runs as the user \"nobody\" in sandboxes of the pool if the image has it, so " +
			"that the first command starts faster; empty means none",
		func(c *Config) value { return (*textValue)(&c.PoolWarmUp) },
		func(c Config) string {
			if strings.ContainsRune(c.PoolWarmUp, 0) || len(c.PoolWarmUp) > maxWarmUp {
				return "write a short command, such as python3 -c pass"
			}
			return ""
		}},
	{"output_bytes", "maximum stored output of each command; older output is dropped",
		func(c *Config) value { return (*sizeValue)(&c.OutputBytes) },
		func(c Config) string {
			return between(float64(c.OutputBytes), 64<<10, 1<<40, "a size of at least 64KiB, such as 64MiB")
		}},
	{"build_cache", "maximum size of cached results of image builds",
		func(c *Config) value { return (*sizeValue)(&c.BuildCache) },
		func(c Config) string {
			return between(float64(c.BuildCache), 0, 1<<50, "a size such as 20GiB, or 0 to keep nothing")
		}},
	{"prices.cpu_core_second", "price of a core for a second",
		func(c *Config) value { return (*numberValue)(&c.Prices.CPUCoreSecond) },
		func(c Config) string { return between(c.Prices.CPUCoreSecond, 0, 1e6, "a price, or 0") }},
	{"prices.memory_gib_second", "price of a GiB of memory for a second",
		func(c *Config) value { return (*numberValue)(&c.Prices.MemoryGiBSecond) },
		func(c Config) string { return between(c.Prices.MemoryGiBSecond, 0, 1e6, "a price, or 0") }},
	{"prices.gpu_second", "price of a GPU for a second, by its kind; other kinds cost nothing",
		func(c *Config) value { return (*pricesValue)(&c.Prices.GPUSecond) },
		func(c Config) string {
			for _, price := range c.Prices.GPUSecond {
				if problem := between(price, 0, 1e6, "prices of at least 0"); problem != "" {
					return problem
				}
			}
			return ""
		}},
	{"prices.currency", "currency of the prices",
		func(c *Config) value { return (*textValue)(&c.Prices.Currency) },
		func(c Config) string { return currency(c.Prices.Currency) }},
	{"refresh", "while harvest up runs, build the base image anew every half hour, and clear old caches",
		func(c *Config) value { return (*boolValue)(&c.Refresh) },
		func(Config) string { return "" }},
	{"idle_exit", "time without use after which a server in the background ends; 0 means never",
		func(c *Config) value { return (*durationValue)(&c.IdleExit) },
		func(c Config) string { return positiveOrZero(c.IdleExit) }},
	{"certificate_dir", "directory of certificate authorities of this machine that sandboxes trust; empty means none",
		func(c *Config) value { return (*textValue)(&c.CertificateDir) },
		func(c Config) string {
			if c.CertificateDir == "" {
				return ""
			}
			return absolute(c.CertificateDir)
		}},
	{"registries.mirrors", "mirrors to try before a registry itself: docker.io=mirror.example.org, separated by commas",
		func(c *Config) value { return (*listValue)(&c.Registries.Mirrors) },
		func(c Config) string { return mirrors(c.Registries.Mirrors) }},
	{"registries.insecure", "registries that may be used without TLS: host:port, separated by commas",
		func(c *Config) value { return (*listValue)(&c.Registries.Insecure) },
		func(c Config) string { return hosts(c.Registries.Insecure) }},
	{"connect.allow",
		"networks beside the internet that accounts may make the server connect to: CIDRs, separated by commas",
		func(c *Config) value { return (*listValue)(&c.Connect.Allow) },
		func(c Config) string {
			_, err := Prefixes(c.Connect.Allow)
			if err != nil {
				return "write CIDRs separated by commas, such as 10.1.0.0/16"
			}
			return ""
		}},
	{"image_limits.bytes", "maximum unpacked size of an image of a registry",
		func(c *Config) value { return (*sizeValue)(&c.ImageLimits.Bytes) },
		func(c Config) string {
			return between(float64(c.ImageLimits.Bytes), 1<<20, 1<<50, "a size of at least 1MiB, such as 32GiB")
		}},
	{"image_limits.files", "maximum number of files of an image of a registry",
		func(c *Config) value { return (*countValue)(&c.ImageLimits.Files) },
		func(c Config) string {
			return between(float64(c.ImageLimits.Files), 100, 1<<30, "a number from 100 to 1073741824")
		}},
	{"image_gc.age", "time without use after which unnamed images are removed, checked once a day; 0 means never",
		func(c *Config) value { return (*durationValue)(&c.ImageGC.Age) },
		func(c Config) string {
			if c.ImageGC.Age == 0 || c.ImageGC.Age >= time.Hour {
				return ""
			}
			return "write a duration of at least 1h, such as 168h, or 0"
		}},
	{"image_gc.size",
		"maximum size of all images; the least recently used unnamed ones beyond it are removed; 0 means no limit",
		func(c *Config) value { return (*sizeValue)(&c.ImageGC.Size) },
		func(c Config) string {
			return between(float64(c.ImageGC.Size), 0, 1<<60, "a size such as 50GiB, or 0 for no limit")
		}},
	{"server.listen", "TCP address of harvest up, host:port; none for the Unix socket only",
		func(c *Config) value { return (*textValue)(&c.Server.Listen) },
		func(c Config) string { return listenable(c.Server.Listen) }},
	{"server.tls_cert", "file of a TLS certificate, with its chain",
		func(c *Config) value { return (*textValue)(&c.Server.Cert) },
		func(c Config) string { return absoluteOrNone(c.Server.Cert) }},
	{"server.tls_key", "file of the certificate's key",
		func(c *Config) value { return (*textValue)(&c.Server.Key) },
		func(c Config) string { return absoluteOrNone(c.Server.Key) }},
	{"server.acme_domain", "domain name of this machine, to obtain a certificate for",
		func(c *Config) value { return (*textValue)(&c.Server.ACMEDomain) },
		func(c Config) string {
			if c.Server.ACMEDomain == "" {
				return ""
			}
			return names([]string{c.Server.ACMEDomain})
		}},
	{"server.acme_email", "mail address for the certificate authority",
		func(c *Config) value { return (*textValue)(&c.Server.ACMEEmail) },
		func(c Config) string {
			if c.Server.ACMEEmail == "" || mailPattern().MatchString(c.Server.ACMEEmail) {
				return ""
			}
			return "write a mail address, such as ops@example.org"
		}},
	{"server.acme_url", "directory URL of the certificate authority; empty means Let's Encrypt",
		func(c *Config) value { return (*textValue)(&c.Server.ACMEURL) },
		func(c Config) string {
			if c.Server.ACMEURL == "" || strings.HasPrefix(c.Server.ACMEURL, "https://") {
				return ""
			}
			return "write a URL that begins with https://"
		}},
	{"server.insecure", "listen without TLS even if other machines can connect",
		func(c *Config) value { return (*boolValue)(&c.Server.Insecure) },
		func(Config) string { return "" }},
	{"server.public_names", "names of the server beside its addresses, separated by commas",
		func(c *Config) value { return (*listValue)(&c.Server.Names) },
		func(c Config) string { return names(c.Server.Names) }},
	{"server.trusted_proxies",
		"addresses or CIDRs of trusted proxies, whose X-Forwarded headers are used, separated by commas",
		func(c *Config) value { return (*listValue)(&c.Server.Proxies) },
		func(c Config) string {
			_, err := Prefixes(c.Server.Proxies)
			if err != nil {
				return errors.Message(err)
			}
			return ""
		}},
	{"server.rate_limit", "maximum number of requests per second of each key; 0 means no limit",
		func(c *Config) value { return (*numberValue)(&c.Server.Rate) },
		func(c Config) string { return between(c.Server.Rate, 0, 1e6, "a number from 0, which means no limit") }},
	{"server.public_url",
		"URL of the server for browsers, if a proxy is in front of it; empty means the listen address",
		func(c *Config) value { return (*textValue)(&c.Server.PublicURL) },
		func(c Config) string { return siteURL(c.Server.PublicURL) }},
	{"ports.domain", "wildcard domain for the host names of ports of sandboxes; empty means none",
		func(c *Config) value { return (*textValue)(&c.Ports.Domain) },
		func(c Config) string { return wildcard(c.Ports.Domain) }},
	{"modal.listen", "address for Modal's protocol, host:port; none disables it",
		func(c *Config) value { return (*textValue)(&c.Modal.Listen) },
		func(c Config) string { return listenable(c.Modal.Listen) }},
	{"modal.url", "URL of the server for programs written for Modal; empty means the listen address",
		func(c *Config) value { return (*textValue)(&c.Modal.URL) },
		func(c Config) string { return siteURL(c.Modal.URL) }},
	{"modal.token_id", "ID of the token at Modal, for the engine modal; empty means MODAL_TOKEN_ID or ~/.modal.toml",
		func(c *Config) value { return (*textValue)(&c.Modal.TokenID) },
		func(c Config) string { return printable(c.Modal.TokenID) }},
	{"modal.token_secret", "secret of the token at Modal; empty means MODAL_TOKEN_SECRET or ~/.modal.toml",
		func(c *Config) value { return (*secretValue)(&c.Modal.TokenSecret) },
		func(c Config) string {
			if c.Modal.TokenSecret.Reveal() == logf.Hidden {
				return "write the secret itself; best as HARVEST_MODAL_TOKEN_SECRET"
			}
			return printable(c.Modal.TokenSecret.Reveal())
		}},
	{"modal.environment", "environment at Modal, for the engine modal; empty means the profile's",
		func(c *Config) value { return (*textValue)(&c.Modal.Environment) },
		func(c Config) string { return printable(c.Modal.Environment) }},
	{"modal.app", "prefix of the names of the engine modal's apps at Modal, one for each account",
		func(c *Config) value { return (*textValue)(&c.Modal.App) },
		func(c Config) string { return filled(c.Modal.App, "the name of an app, such as harvest") }},
	{"modal.image", "image of a registry that base means with the engine modal",
		func(c *Config) value { return (*textValue)(&c.Modal.Image) },
		func(c Config) string {
			return filled(c.Modal.Image, "an image with sh and python3, such as python:3.13-slim-bookworm")
		}},
	{"oidc.issuer", "URL of the OpenID Connect provider for sign-in; empty means none",
		func(c *Config) value { return (*textValue)(&c.OIDC.Issuer) },
		func(c Config) string { return issuer(c.OIDC.Issuer) }},
	{"oidc.client_id", "client ID of the server at the provider",
		func(c *Config) value { return (*textValue)(&c.OIDC.ClientID) },
		func(c Config) string { return printable(c.OIDC.ClientID) }},
	{"oidc.client_secret", "client secret of the server at the provider; empty for a public client",
		func(c *Config) value { return (*secretValue)(&c.OIDC.ClientSecret) },
		func(c Config) string {
			if c.OIDC.ClientSecret.Reveal() == logf.Hidden {
				return "write the secret itself; best as HARVEST_OIDC_CLIENT_SECRET"
			}
			return printable(c.OIDC.ClientSecret.Reveal())
		}},
	{"oidc.scopes", "scopes to request from the provider, separated by commas",
		func(c *Config) value { return (*listValue)(&c.OIDC.Scopes) },
		func(c Config) string { return scopes(c.OIDC) }},
	{"oidc.groups_claim", "claim that lists a person's groups",
		func(c *Config) value { return (*textValue)(&c.OIDC.Groups) },
		func(c Config) string {
			if c.OIDC.Groups == "" {
				return "write the name of a claim, such as groups"
			}
			return printable(c.OIDC.Groups)
		}},
	{"oidc.allow", "people who may sign in, as WHO=ACCOUNT[:ROLE]; the first match counts",
		func(c *Config) value { return (*listValue)(&c.OIDC.Allow) },
		func(c Config) string { return allowed(c.OIDC.Allow) }},
	{"agents.default", "agent of sessions that name none: claude, opencode or scripted",
		func(c *Config) value { return (*textValue)(&c.Agents.Default) },
		func(c Config) string { return oneOf(c.Agents.Default, []string{"claude", "opencode", "scripted"}) }},
	{"agents.image", "image of the sandboxes of sessions",
		func(c *Config) value { return (*textValue)(&c.Agents.Image) },
		func(c Config) string {
			odd := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
			if c.Agents.Image != "" && !strings.HasPrefix(c.Agents.Image, "-") &&
				!strings.ContainsFunc(c.Agents.Image, odd) {
				return ""
			}
			return "write the name of an image, such as agent"
		}},
	{"agents.spares",
		"number of spare sessions, with sandbox, repository and agent, that are made ahead for each kind in use; 0 " +
			"means none",
		func(c *Config) value { return (*countValue)(&c.Agents.Spares) },
		func(c Config) string { return between(float64(c.Agents.Spares), 0, 4, "a number from 0 to 4") }},
	{"agents.spare_life", "time after which an unused spare session ends",
		func(c *Config) value { return (*durationValue)(&c.Agents.SpareLife) },
		func(c Config) string { return positive(c.Agents.SpareLife) }},
	{"model.url", "address of the model's API; empty means ANTHROPIC_BASE_URL, or the provider's own",
		func(c *Config) value { return (*textValue)(&c.Model.URL) },
		func(c Config) string {
			u, err := url.Parse(c.Model.URL)
			if c.Model.URL == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" &&
				u.User == nil {
				return ""
			}
			return "write a URL such as https://api.anthropic.com, without a password"
		}},
	{"model.gateway", "agents send requests for models through the server, which alone has the key",
		func(c *Config) value { return (*boolValue)(&c.Model.Gateway) },
		func(Config) string { return "" }},
	{"s3.bucket", "bucket for volumes without a bucket of their own; empty means none",
		func(c *Config) value { return (*textValue)(&c.S3.Bucket) },
		func(c Config) string { return bucket(c.S3.Bucket) }},
	{"s3.prefix", "prefix of keys in the bucket; account and volume follow",
		func(c *Config) value { return (*textValue)(&c.S3.Prefix) },
		func(c Config) string { return printable(c.S3.Prefix) }},
	{"s3.endpoint",
		"address of an S3 server; empty means the secret's, or AWS; embedded means one that stores buckets in the " +
			"data directory",
		func(c *Config) value { return (*textValue)(&c.S3.Endpoint) },
		func(c Config) string {
			if c.S3.Endpoint == Embedded {
				return ""
			}
			return siteURL(c.S3.Endpoint)
		}},
	{"s3.region", "region of the bucket; empty means the secret's",
		func(c *Config) value { return (*textValue)(&c.S3.Region) },
		func(c Config) string { return printable(c.S3.Region) }},
	{"s3.path_style", "put the bucket into the path of URLs, as most servers but AWS require",
		func(c *Config) value { return (*boolValue)(&c.S3.PathStyle) },
		func(Config) string { return "" }},
	{"s3.ca_file", "PEM file of certificate authorities to trust for S3, beside the system's",
		func(c *Config) value { return (*textValue)(&c.S3.CAFile) },
		func(c Config) string { return absoluteOrNone(c.S3.CAFile) }},
	{"s3.proxy", "HTTP proxy for S3; empty means HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
		func(c *Config) value { return (*textValue)(&c.S3.Proxy) },
		func(c Config) string { return siteURL(c.S3.Proxy) }},
	{"s3.secret", "secret with the bucket's credentials",
		func(c *Config) value { return (*textValue)(&c.S3.Secret) },
		func(c Config) string { return printable(c.S3.Secret) }},
	{"s3.packs", "store copies of small files in packs, from which empty volumes are filled many times faster",
		func(c *Config) value { return (*boolValue)(&c.S3.Packs) },
		func(Config) string { return "" }},
	{"s3.max_delete_files",
		"minimum number of files for the check of --delete-many: a sync that deletes most files of a side needs it",
		func(c *Config) value { return (*countValue)(&c.S3.MaxDeleteFiles) },
		func(c Config) string {
			return between(float64(c.S3.MaxDeleteFiles), 1, 1<<30, "a number from 1 to 1073741824")
		}},
	{"s3.max_delete_percent",
		"percentage of a side's files above which such a sync needs --delete-many; 100 means never",
		func(c *Config) value { return (*countValue)(&c.S3.MaxDeletePercent) },
		func(c Config) string {
			return between(float64(c.S3.MaxDeletePercent), 1, 100, "a percentage from 1 to 100")
		}},
	{"log.level", "minimum level of the log: debug, info, warn or error",
		func(c *Config) value { return (*levelValue)(&c.Log.Level) },
		func(Config) string { return "" }},
	{"log.format", "format of the log: text or json",
		func(c *Config) value { return (*textValue)(&c.Log.Format) },
		func(c Config) string { return oneOf(c.Log.Format, []string{"text", "json"}) }},
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

func oneOf(text string, allowed []string) string {
	if slices.Contains(allowed, text) {
		return ""
	}
	return "write " + strings.Join(allowed, " or ")
}

func between(n, low, high float64, want string) string {
	if n >= low && n <= high && !math.IsNaN(n) {
		return ""
	}
	return "write " + want
}

// longest is the maximum of all times. Package sandbox accepts no longer ones.
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
