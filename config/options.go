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
	{"data", "the data directory",
		func(c *Config) value { return (*textValue)(&c.Data) },
		func(c Config) string { return absolute(c.Data) }},
	{"engine", "what runs sandboxes",
		func(c *Config) value { return (*textValue)(&c.Engine) },
		func(c Config) string { return oneOf(c.Engine, Engines) }},
	{"platform", "how gVisor intercepts system calls",
		func(c *Config) value { return (*textValue)(&c.Platform) },
		func(c Config) string { return oneOf(c.Platform, Platforms) }},
	{"setuid", "whether setuid programs such as sudo gain privileges inside sandboxes of the engine gvisor",
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
	{"limits.disk", "what a sandbox may write to its own file system",
		func(c *Config) value { return (*sizeValue)(&c.Limits.Disk) },
		func(c Config) string {
			return between(float64(c.Limits.Disk), 1<<20, 1<<50, "a size of at least 1MiB, such as 10GiB")
		}},
	{"limits.processes", "processes of a sandbox",
		func(c *Config) value { return (*countValue)(&c.Limits.Processes) },
		func(c Config) string {
			return between(float64(c.Limits.Processes), 8, 1<<22, "a number from 8 to 4194304")
		}},
	{"limits.files", "open files of a process",
		func(c *Config) value { return (*countValue)(&c.Limits.Files) },
		func(c Config) string {
			return between(float64(c.Limits.Files), 32, 1<<20, "a number from 32 to 1048576")
		}},
	{"limits.volume_files", "files and directories that a volume may have when a sandbox creates more; 0 means one for each 16 KiB of limits.disk, and at least 200000",
		func(c *Config) value { return (*countValue)(&c.Limits.VolumeFiles) },
		func(c Config) string {
			if c.Limits.VolumeFiles == 0 {
				return ""
			}
			return between(float64(c.Limits.VolumeFiles), 100, 1<<30, "a number from 100 to 1073741824, or 0 for the default")
		}},
	{"timeout", "lifetime of a sandbox",
		func(c *Config) value { return (*durationValue)(&c.Timeout) },
		func(c Config) string { return positive(c.Timeout) }},
	{"idle_timeout", "a sandbox in which no command runs, no terminal is open and no port is connected ends after this; 0 means never",
		func(c *Config) value { return (*durationValue)(&c.IdleTimeout) },
		func(c Config) string { return positiveOrZero(c.IdleTimeout) }},
	{"exec_timeout", "time limit of a command",
		func(c *Config) value { return (*durationValue)(&c.ExecTimeout) },
		func(c Config) string { return positive(c.ExecTimeout) }},
	{"usage_interval", "how often running sandboxes are asked what they use",
		func(c *Config) value { return (*durationValue)(&c.UsageInterval) },
		func(c Config) string { return positive(c.UsageInterval) }},
	{"quotas.sandboxes", "sandboxes at once; 0 means no limit",
		func(c *Config) value { return (*countValue)(&c.Quotas.Sandboxes) },
		func(c Config) string {
			return between(float64(c.Quotas.Sandboxes), 0, 1<<20, "a number from 0, which means no limit, to 1048576")
		}},
	{"quotas.cpu", "cores of all sandboxes together; 0 means no limit",
		func(c *Config) value { return (*numberValue)(&c.Quotas.CPU) },
		func(c Config) string {
			return between(c.Quotas.CPU, 0, 1<<20, "a number of cores, or 0 for no limit")
		}},
	{"quotas.memory", "memory of all sandboxes together; 0 means no limit",
		func(c *Config) value { return (*sizeValue)(&c.Quotas.Memory) },
		func(c Config) string {
			return between(float64(c.Quotas.Memory), 0, 1<<60, "a size such as 64GiB, or 0 for no limit")
		}},
	{"quotas.volumes", "volumes of an account on this machine; 0 means no limit",
		func(c *Config) value { return (*countValue)(&c.Quotas.Volumes) },
		func(c Config) string {
			return between(float64(c.Quotas.Volumes), 0, 1<<20, "a number from 0, which means no limit, to 1048576")
		}},
	{"pool", "sandboxes booted ahead of need; 0 means none",
		func(c *Config) value { return (*countValue)(&c.Pool) },
		func(c Config) string { return between(float64(c.Pool), 0, 256, "a number from 0 to 256") }},
	{"boots", "sandboxes that boot at once, the others in the order of requests; 0 means two for each core of this machine (at Modal: no bound)",
		func(c *Config) value { return (*countValue)(&c.Boots) },
		func(c Config) string { return between(float64(c.Boots), 0, 1024, "a number from 0 to 1024") }},
	{"pool_warm_up", "command, split at spaces, that is run as nobody in sandboxes of the pool whose image has it, so that the first command is quicker; empty means none",
		func(c *Config) value { return (*textValue)(&c.PoolWarmUp) },
		func(c Config) string {
			if strings.ContainsRune(c.PoolWarmUp, 0) || len(c.PoolWarmUp) > maxWarmUp {
				return "write a short command, such as python3 -c pass"
			}
			return ""
		}},
	{"output_bytes", "output kept of each command",
		func(c *Config) value { return (*sizeValue)(&c.OutputBytes) },
		func(c Config) string {
			return between(float64(c.OutputBytes), 64<<10, 1<<40, "a size of at least 64KiB, such as 64MiB")
		}},
	{"build_cache", "kept of what the steps of image builds have made",
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
	{"prices.gpu_second", "price of a GPU for a second, by its kind; kinds that are not named cost nothing",
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
	{"idle_exit", "a server in the background ends after so long without use; 0 means never",
		func(c *Config) value { return (*durationValue)(&c.IdleExit) },
		func(c Config) string { return positiveOrZero(c.IdleExit) }},
	{"certificate_dir", "certificate authorities of this machine that sandboxes trust; empty means none",
		func(c *Config) value { return (*textValue)(&c.CertificateDir) },
		func(c Config) string {
			if c.CertificateDir == "" {
				return ""
			}
			return absolute(c.CertificateDir)
		}},
	{"registries.mirrors", "asked before a registry itself: docker.io=mirror.example.org, with commas between",
		func(c *Config) value { return (*listValue)(&c.Registries.Mirrors) },
		func(c Config) string { return mirrors(c.Registries.Mirrors) }},
	{"registries.insecure", "registries that may be spoken to without TLS: host:port, with commas between",
		func(c *Config) value { return (*listValue)(&c.Registries.Insecure) },
		func(c Config) string { return hosts(c.Registries.Insecure) }},
	{"connect.allow", "networks that accounts may make the server connect to, although they are not the internet: CIDRs, with commas between",
		func(c *Config) value { return (*listValue)(&c.Connect.Allow) },
		func(c Config) string {
			_, err := Prefixes(c.Connect.Allow)
			if err != nil {
				return "write CIDRs with commas between, such as 10.1.0.0/16"
			}
			return ""
		}},
	{"image_limits.bytes", "what an image of a registry may unpack to",
		func(c *Config) value { return (*sizeValue)(&c.ImageLimits.Bytes) },
		func(c Config) string {
			return between(float64(c.ImageLimits.Bytes), 1<<20, 1<<50, "a size of at least 1MiB, such as 32GiB")
		}},
	{"image_limits.files", "how many files it may have",
		func(c *Config) value { return (*countValue)(&c.ImageLimits.Files) },
		func(c Config) string {
			return between(float64(c.ImageLimits.Files), 100, 1<<30, "a number from 100 to 1073741824")
		}},
	{"image_gc.age", "once a day, images without a name that nobody used for so long are removed; 0 means never",
		func(c *Config) value { return (*durationValue)(&c.ImageGC.Age) },
		func(c Config) string {
			if c.ImageGC.Age == 0 || c.ImageGC.Age >= time.Hour {
				return ""
			}
			return "write a duration of at least 1h, such as 168h, or 0"
		}},
	{"image_gc.size", "and the longest unused ones beyond so many bytes in all; 0 means no limit",
		func(c *Config) value { return (*sizeValue)(&c.ImageGC.Size) },
		func(c Config) string {
			return between(float64(c.ImageGC.Size), 0, 1<<60, "a size such as 50GiB, or 0 for no limit")
		}},
	{"server.listen", "where harvest up listens, host:port; none for the Unix socket only",
		func(c *Config) value { return (*textValue)(&c.Server.Listen) },
		func(c Config) string { return listenable(c.Server.Listen) }},
	{"server.tls_cert", "file of a TLS certificate, with those that sign it",
		func(c *Config) value { return (*textValue)(&c.Server.Cert) },
		func(c Config) string { return absoluteOrNone(c.Server.Cert) }},
	{"server.tls_key", "file of its key",
		func(c *Config) value { return (*textValue)(&c.Server.Key) },
		func(c Config) string { return absoluteOrNone(c.Server.Key) }},
	{"server.acme_domain", "a name of this machine, for which a certificate is got",
		func(c *Config) value { return (*textValue)(&c.Server.ACMEDomain) },
		func(c Config) string {
			if c.Server.ACMEDomain == "" {
				return ""
			}
			return names([]string{c.Server.ACMEDomain})
		}},
	{"server.acme_email", "whom the certificate authority writes to",
		func(c *Config) value { return (*textValue)(&c.Server.ACMEEmail) },
		func(c Config) string {
			if c.Server.ACMEEmail == "" || mailPattern().MatchString(c.Server.ACMEEmail) {
				return ""
			}
			return "write a mail address, such as ops@example.org"
		}},
	{"server.acme_url", "the authority's directory; empty means Let's Encrypt",
		func(c *Config) value { return (*textValue)(&c.Server.ACMEURL) },
		func(c Config) string {
			if c.Server.ACMEURL == "" || strings.HasPrefix(c.Server.ACMEURL, "https://") {
				return ""
			}
			return "write a URL that begins with https://"
		}},
	{"server.insecure", "listen without TLS although other machines can connect",
		func(c *Config) value { return (*boolValue)(&c.Server.Insecure) },
		func(Config) string { return "" }},
	{"server.public_names", "what the server is called, beside its addresses, with commas between",
		func(c *Config) value { return (*listValue)(&c.Server.Names) },
		func(c Config) string { return names(c.Server.Names) }},
	{"server.trusted_proxies", "addresses or CIDRs of proxies whose X-Forwarded headers are believed, with commas between",
		func(c *Config) value { return (*listValue)(&c.Server.Proxies) },
		func(c Config) string {
			_, err := Prefixes(c.Server.Proxies)
			if err != nil {
				return errors.Message(err)
			}
			return ""
		}},
	{"server.rate_limit", "requests a second of each key; 0 means no limit",
		func(c *Config) value { return (*numberValue)(&c.Server.Rate) },
		func(c Config) string { return between(c.Server.Rate, 0, 1e6, "a number from 0, which means no limit") }},
	{"server.public_url", "where browsers reach the server, if a proxy stands before it; empty means where it listens",
		func(c *Config) value { return (*textValue)(&c.Server.PublicURL) },
		func(c Config) string { return siteURL(c.Server.PublicURL) }},
	{"ports.domain", "wildcard whose host names are ports of sandboxes; empty for none",
		func(c *Config) value { return (*textValue)(&c.Ports.Domain) },
		func(c Config) string { return wildcard(c.Ports.Domain) }},
	{"modal.listen", "where harvest up speaks Modal's protocol, host:port; none for nowhere",
		func(c *Config) value { return (*textValue)(&c.Modal.Listen) },
		func(c Config) string { return listenable(c.Modal.Listen) }},
	{"modal.url", "URL at which programs written for Modal reach the server; empty means where it listens",
		func(c *Config) value { return (*textValue)(&c.Modal.URL) },
		func(c Config) string { return siteURL(c.Modal.URL) }},
	{"modal.token_id", "the token's ID at Modal, for the engine modal; empty for what MODAL_TOKEN_ID or ~/.modal.toml say",
		func(c *Config) value { return (*textValue)(&c.Modal.TokenID) },
		func(c Config) string { return printable(c.Modal.TokenID) }},
	{"modal.token_secret", "the secret that goes with it; empty for what MODAL_TOKEN_SECRET or ~/.modal.toml say",
		func(c *Config) value { return (*secretValue)(&c.Modal.TokenSecret) },
		func(c Config) string {
			if c.Modal.TokenSecret.Reveal() == logf.Hidden {
				return "write the secret itself; best as HARVEST_MODAL_TOKEN_SECRET"
			}
			return printable(c.Modal.TokenSecret.Reveal())
		}},
	{"modal.environment", "the environment at Modal that the engine modal uses; empty for the profile's",
		func(c *Config) value { return (*textValue)(&c.Modal.Environment) },
		func(c Config) string { return printable(c.Modal.Environment) }},
	{"modal.app", "the beginning of the names of the engine modal's apps at Modal, one for each account",
		func(c *Config) value { return (*textValue)(&c.Modal.App) },
		func(c Config) string { return filled(c.Modal.App, "the name of an app, such as harvest") }},
	{"modal.image", "the registry's image that base stands for with the engine modal",
		func(c *Config) value { return (*textValue)(&c.Modal.Image) },
		func(c Config) string {
			return filled(c.Modal.Image, "an image with sh and python3, such as python:3.13-slim-bookworm")
		}},
	{"oidc.issuer", "URL of the OpenID Connect provider whose people may sign in; empty for none",
		func(c *Config) value { return (*textValue)(&c.OIDC.Issuer) },
		func(c Config) string { return issuer(c.OIDC.Issuer) }},
	{"oidc.client_id", "what the server is called there",
		func(c *Config) value { return (*textValue)(&c.OIDC.ClientID) },
		func(c Config) string { return printable(c.OIDC.ClientID) }},
	{"oidc.client_secret", "the secret that goes with it; empty for a public client",
		func(c *Config) value { return (*secretValue)(&c.OIDC.ClientSecret) },
		func(c Config) string {
			if c.OIDC.ClientSecret.Reveal() == logf.Hidden {
				return "write the secret itself; best as HARVEST_OIDC_CLIENT_SECRET"
			}
			return printable(c.OIDC.ClientSecret.Reveal())
		}},
	{"oidc.scopes", "what the provider is asked for, with commas between",
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
	{"oidc.allow", "who may sign in, as WHO=ACCOUNT[:ROLE]; the first that fits counts",
		func(c *Config) value { return (*listValue)(&c.OIDC.Allow) },
		func(c Config) string { return allowed(c.OIDC.Allow) }},
	{"agents.default", "agent of sessions that name none: claude, opencode or scripted",
		func(c *Config) value { return (*textValue)(&c.Agents.Default) },
		func(c Config) string { return oneOf(c.Agents.Default, []string{"claude", "opencode", "scripted"}) }},
	{"agents.image", "image of their sandboxes",
		func(c *Config) value { return (*textValue)(&c.Agents.Image) },
		func(c Config) string {
			odd := func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }
			if c.Agents.Image != "" && !strings.HasPrefix(c.Agents.Image, "-") && !strings.ContainsFunc(c.Agents.Image, odd) {
				return ""
			}
			return "write the name of an image, such as agent"
		}},
	{"agents.spares", "sessions of each kind in use that are made ahead, with sandbox, repository and agent, for the next prompt; 0 means none",
		func(c *Config) value { return (*countValue)(&c.Agents.Spares) },
		func(c Config) string { return between(float64(c.Agents.Spares), 0, 4, "a number from 0 to 4") }},
	{"agents.spare_life", "how long such a session waits for a prompt before it ends",
		func(c *Config) value { return (*durationValue)(&c.Agents.SpareLife) },
		func(c Config) string { return positive(c.Agents.SpareLife) }},
	{"model.url", "address of the model's API; empty means ANTHROPIC_BASE_URL, or the provider's own",
		func(c *Config) value { return (*textValue)(&c.Model.URL) },
		func(c Config) string {
			u, err := url.Parse(c.Model.URL)
			if c.Model.URL == "" || err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil {
				return ""
			}
			return "write a URL such as https://api.anthropic.com, without a password"
		}},
	{"model.gateway", "agents ask models through the server, which alone has the key",
		func(c *Config) value { return (*boolValue)(&c.Model.Gateway) },
		func(Config) string { return "" }},
	{"s3.bucket", "bucket for volumes that are sent nowhere else; empty for none",
		func(c *Config) value { return (*textValue)(&c.S3.Bucket) },
		func(c Config) string { return bucket(c.S3.Bucket) }},
	{"s3.prefix", "what keys in it begin with; account and volume follow",
		func(c *Config) value { return (*textValue)(&c.S3.Prefix) },
		func(c Config) string { return printable(c.S3.Prefix) }},
	{"s3.endpoint", "address of a server that speaks S3; empty means AWS, or what the secret says; embedded means one that keeps buckets in the data directory",
		func(c *Config) value { return (*textValue)(&c.S3.Endpoint) },
		func(c Config) string {
			if c.S3.Endpoint == Embedded {
				return ""
			}
			return siteURL(c.S3.Endpoint)
		}},
	{"s3.region", "region of the bucket; empty means what the secret says",
		func(c *Config) value { return (*textValue)(&c.S3.Region) },
		func(c Config) string { return printable(c.S3.Region) }},
	{"s3.path_style", "the bucket is in the path, as most servers but AWS want it",
		func(c *Config) value { return (*boolValue)(&c.S3.PathStyle) },
		func(Config) string { return "" }},
	{"s3.ca_file", "authorities to trust for it besides the system's, in PEM",
		func(c *Config) value { return (*textValue)(&c.S3.CAFile) },
		func(c Config) string { return absoluteOrNone(c.S3.CAFile) }},
	{"s3.proxy", "HTTP proxy on the way there; empty means what HTTPS_PROXY, HTTP_PROXY and NO_PROXY say",
		func(c *Config) value { return (*textValue)(&c.S3.Proxy) },
		func(c Config) string { return siteURL(c.S3.Proxy) }},
	{"s3.secret", "secret with the bucket's credentials",
		func(c *Config) value { return (*textValue)(&c.S3.Secret) },
		func(c Config) string { return printable(c.S3.Secret) }},
	{"s3.packs", "keep copies of small files there, many in one object, from which empty volumes fill many times faster",
		func(c *Config) value { return (*boolValue)(&c.S3.Packs) },
		func(Config) string { return "" }},
	{"s3.max_delete_files", "number of files from which a sync that deletes most files of a side needs --delete-many",
		func(c *Config) value { return (*countValue)(&c.S3.MaxDeleteFiles) },
		func(c Config) string {
			return between(float64(c.S3.MaxDeleteFiles), 1, 1<<30, "a number from 1 to 1073741824")
		}},
	{"s3.max_delete_percent", "percentage of a side's files above which such a sync needs --delete-many; 100 means never",
		func(c *Config) value { return (*countValue)(&c.S3.MaxDeletePercent) },
		func(c Config) string {
			return between(float64(c.S3.MaxDeletePercent), 1, 100, "a percentage from 1 to 100")
		}},
	{"log.level", "what is logged: debug, info, warn or error",
		func(c *Config) value { return (*levelValue)(&c.Log.Level) },
		func(Config) string { return "" }},
	{"log.format", "how the log is written: text or json",
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
		if o.key[strings.LastIndex(o.key, ".")+1:] == last || strings.ReplaceAll(o.key, "_", "") == strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(key)) {
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
