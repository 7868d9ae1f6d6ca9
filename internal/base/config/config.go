// Package config is Harvest's configuration: one struct, filled from defaults, a file, the environment and
// flags.
//
// To add an option, add a field to Config and a row to options (options.go). Everything else follows from the
// row: the key in the file, the environment variable, the check, and the text in `harvest config` and
// docs/configuration.md.
package config

import (
	"cmp"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/goccy/go-yaml"
)

// KeyFiles are the files of the data directory with private keys. With the first two, anyone can read the secrets of
// its database. The third, which exists once Modal's protocol was served, signs certificates of tunnels on this
// machine. The last one shows clients of SSH that the server is the one that they know.
var KeyFiles = []string{"secret.key", "signing.key", "modal/authority.pem", SSHKeyFile}

// SSHKeyFile is the file of the data directory with the server's key for SSH.
const SSHKeyFile = "ssh_host_key"

// Config is the whole configuration. Sizes are in bytes.
type Config struct {
	Data        string // the data directory: records, images, volumes, files of sandboxes
	Engine      string // one of Engines
	Isolation   Isolation
	Platform    string        // how gVisor intercepts system calls: one of Platforms
	Setuid      bool          // setuid programs gain privileges inside sandboxes
	Limits      Limits        // default limits of a sandbox
	Timeout     time.Duration // lifetime of a sandbox
	IdleTimeout time.Duration // a sandbox ends after this time without a running command; 0 means never
	// SuspendedTimeout is how long a sandbox may be suspended until it ends.
	SuspendedTimeout time.Duration
	ExecTimeout      time.Duration // default time limit of a command
	UsageInterval    time.Duration // interval between usage samples of a running sandbox
	Quotas           Quotas        // over all sandboxes
	Pool             int           // sandboxes booted ahead of need; 0 means none
	Boots            int           // sandboxes that boot at once; 0 means two for each core
	PoolWarmUp       string        // command run in pooled sandboxes ahead of need; "" means none
	OutputBytes      int64         // bytes kept of each command's output
	BuildCache       int64         // bytes kept of the build cache
	Prices           Prices        // of a sandbox's resources
	Refresh          bool          // the environment is refreshed every half hour while a server in the foreground runs
	IdleExit         time.Duration // a background server ends after this time without use; 0 means never
	CertificateDir   string        // certificate authorities of the host that sandboxes trust too; "" means none
	Connect          Connect
	Registries       Registries
	ImageLimits      ImageLimits
	ImageGC          ImageGC
	Log              Log
	Server           Server
	Ports            Ports
	OIDC             OIDC
	Agents           Agents
	S3               S3
	Model            Model
	Logins           Logins
	Modal            Modal
	Kubernetes       Kubernetes
	Notify           Notify

	sources map[string]string // by key: the origin of the value; "default" if missing
}

// S3 is the default location of volumes, and how S3 is reached.
type S3 struct {
	Bucket    string // "" for none
	Prefix    string // prefix of all keys
	Endpoint  string // URL of a server; "" is AWS, and Embedded a directory of the data directory
	Region    string // "" means the secret's
	PathStyle bool   // the bucket is in the path, not in the host name
	CAFile    string // authorities to trust besides the system's; "" for none
	Proxy     string // URL of an HTTP proxy; "" means the environment's
	Secret    string // name of the personal account's secret with the credentials
	Packs     bool   // keep packs of small files: see sync.Options.Packs
	// A sync that would delete at least MaxDeleteFiles files and more than MaxDeletePercent of a side's files
	// fails, unless the request allows it.
	MaxDeleteFiles, MaxDeletePercent int
}

// Configured reports whether there is a default location of volumes: the embedded S3, or a bucket with
// credentials, whether valid or not. has reports whether the personal account has S3 credentials in the secret
// of that name.
func (s S3) Configured(has func(secret string) bool) bool {
	return s.Endpoint == Embedded || s.Bucket != "" && has(cmp.Or(s.Secret, s3Secret))
}

// s3Secret is the default secret with the credentials.
const s3Secret = "aws"

// Embedded is the value of S3.Endpoint for the S3 server that Harvest contains.
const Embedded = "embedded"

// Limits of one sandbox.
type Limits struct {
	CPU       float64 // cores
	Memory    int64
	Disk      int64 // bytes that it writes to its own file system
	Processes int
	Files     int // open files of one process

	VolumeFiles int // files and directories of a writable volume; 0 means limits.disk divided by 16 KiB
}

// Quotas over all sandboxes; zero means no limit.
type Quotas struct {
	Sandboxes int
	CPU       float64 // cores
	Memory    int64
	Volumes   int // of one account
}

// Prices of a sandbox's resources, per second of its life.
type Prices struct {
	CPUCoreSecond   float64
	MemoryGiBSecond float64
	GPUSecond       map[string]float64 // of one GPU, by kind; a kind without a price costs nothing
	Currency        string
}

// modalGPUs are Modal's base prices of a GPU per second, in USD, without regional multipliers.
// https://modal.com/pricing itself could not be read. Copies in public repositories agree; one of them was
// compared on 2026-10-04 according to its text. A100 is A100-40GB, and A10G is A10.
func modalGPUs() map[string]float64 {
	return map[string]float64{
		"T4": 0.000164, "L4": 0.000222, "A10": 0.000306, "A10G": 0.000306, "L40S": 0.000542, "A100": 0.000583,
		"A100-40GB": 0.000583, "A100-80GB": 0.000694,
		"RTX-PRO-6000": 0.000842, "H100": 0.001097, "H200": 0.001261, "B200": 0.001736,
	}
}

// Server configures how clients reach `harvest up` over TCP. The Unix socket in the data directory always
// exists.
type Server struct {
	Listen     string   // host:port; "none" for the Unix socket only
	Cert, Key  string   // files of a TLS certificate and its key; both or neither
	ACMEDomain string   // domain for which the server obtains a certificate
	ACMEEmail  string   // contact address for the authority; may be empty
	ACMEURL    string   // the authority's directory; "" is Let's Encrypt
	Insecure   bool     // no TLS although other machines can connect
	Names      []string // host names of the server, beside its addresses and "localhost"
	Proxies    []string // addresses or CIDRs of proxies whose X-Forwarded-… headers are trusted
	Rate       float64  // requests a second of each key; 0 means no limit
	PublicURL  string   // URL of the server for browsers; "" means the listen address
	SSHListen  string   // host:port for clients of SSH with a key; "none" disables it
}

// Ports configures how browsers reach ports of sandboxes.
type Ports struct {
	Domain string // "*.example.org": each port gets a host name below it; "" means no host names
}

// Logins configures the logins of accounts to providers.
type Logins struct {
	Providers []string // settings in place of the providers' own, as grant.NewProviders takes them
}

// Notify configures who is notified of new items of inboxes.
type Notify struct {
	Webhook  Secret   // URL that gets them; "" means none. It may contain a key.
	Secret   Secret   // key of the webhook's signatures; "" means no signatures
	Command  string   // command that gets each on its standard input, split at spaces; "" means none
	Kinds    []string // of NotifyKinds
	Accounts []string // "*" means all
}

// NotifyKinds are the kinds of items of an inbox.
var NotifyKinds = []string{"approval", "question", "finished", "silent", "login"}

// OIDC configures sign-in with an OpenID Connect provider.
type OIDC struct {
	Issuer       string // URL of the provider; "" means none
	ClientID     string
	ClientSecret Secret   // may be empty
	Scopes       []string // scopes to request
	Groups       string   // name of the claim with a person's groups
	// Allow has rules such as "ann@example.org=acme:admin", "@example.org=acme" and "group:ops=personal:admin". The
	// first match counts.
	Allow []string
}

// Agents are the defaults of sessions.
type Agents struct {
	Default string   // name of an agent, or a command that speaks ACP
	Custom  []string // further agents, as NAME.FIELD=VALUE
	// Versions are versions of built-in agents, as NAME=VERSION; the others are those of the image.
	Versions []string
	Image    string // of their sandboxes; name of an image or of a registry's image
	// Spares is how many sessions of each kind in use are made ahead and wait for the next prompt; 0: none. SpareLife
	// is how long they wait.
	Spares    int
	SpareLife time.Duration
	// UploadBytes is the maximum size of a file that a client sends ahead of a session.
	UploadBytes int64
}

// Model configures how agents reach their models.
type Model struct {
	// URL is the base of Anthropic's API or a compatible one. "" means ANTHROPIC_BASE_URL of the server's environment,
	// or Anthropic.
	URL     string
	Gateway bool // through the server, which adds the credentials; otherwise agents get them
	// Prices are prices of models that precede the list prices, as MODEL=INPUT/OUTPUT[/CACHED] in USD per million
	// tokens.
	Prices []string
}

// Modal configures how programs written for Modal reach this server, and how the engine modal reaches Modal.
type Modal struct {
	Listen string // host:port; "none" disables it
	URL    string // URL for clients; "" means the listen address

	// TokenID and TokenSecret belong to the engine's account. If both are "", the engine uses the environment variables
	// of Modal's SDK, or ~/.modal.toml.
	TokenID     string
	TokenSecret Secret
	Environment string // at Modal; "" means the profile's
	App         string // app of the engine's sandboxes
	Image       string // registry image that replaces the image "base"
}

// Kubernetes configures the engine kubernetes, and the pods of its sandboxes.
type Kubernetes struct {
	Kubeconfig, Context string // "" as for kubectl, or the service account of the server's own pod
	Namespace           string // "" means the context's
	Reach               string // of Reaches
	Image               string // of pods
	PullPolicy          string // of PullPolicies; "" for Kubernetes' default
	PullSecrets         []string
	ServiceAccount      string
	RuntimeClass        string
	PriorityClass       string
	NodeSelector        []string // LABEL=VALUE
	Tolerations         []string // KEY=VALUE:EFFECT; value and effect are optional
	UserNamespace       bool
	NodeAddresses       []string      // that Kubernetes does not know
	CPU                 float64       // requested by each pod, in cores
	Memory              int64         // requested by each pod
	Cache               string        // directory of each node for files of images; "" for none
	Grace               time.Duration // of an evicted pod, to carry its sandbox over; 0 for none
	MaxCPU              float64       // of one sandbox
	MaxMemory           int64         // of one sandbox
}

// Reaches are the ways to reach pods; PullPolicies those to pull their image.
var (
	Reaches      = []string{"auto", "direct", "forward"}
	PullPolicies = []string{"", "Always", "IfNotPresent", "Never"}
)

// Registries configures how image registries are reached.
type Registries struct {
	Mirrors  []string // "docker.io=mirror.example.org": tried before the registry itself
	Insecure []string // "10.0.0.1:5000": hosts that may be reached without TLS
}

// Connect configures the addresses to which the server may connect on behalf of accounts.
type Connect struct {
	Allow []string // CIDRs within private or otherwise special ranges
}

// MirrorsByHost returns the mirrors of each registry, in the order of use.
func (r Registries) MirrorsByHost() map[string][]string {
	all := map[string][]string{}
	for _, pair := range r.Mirrors {
		host, mirror, _ := strings.Cut(pair, "=")
		all[host] = append(all[host], mirror)
	}
	return all
}

// ImageLimits are the maximum unpacked sizes of a registry's image.
type ImageLimits struct {
	Bytes int64
	Files int
}

// ImageGC configures which unused images the server removes once a day.
type ImageGC struct {
	Age  time.Duration // unused for this time; 0 means no automatic removal
	Size int64         // and above this total of bytes; 0 means no limit
	// Sessions is how long the files of a session stay after its end; 0 means for ever.
	Sessions time.Duration
}

// Isolation says how sandboxes of the engine gvisor may be isolated.
type Isolation struct {
	Allowed []string // of Isolations, those that requests may name
	Default string   // one of Allowed
}

// Log configures the log.
type Log struct {
	Level  slog.Level
	Format string // "text" or "json"
}

// Engines and Platforms are the allowed values of Config's fields of these names.
var (
	Engines    = []string{"gvisor", "kubernetes", "modal", "fake"}
	Isolations = []string{"gvisor", "container"}
	Platforms  = []string{"systrap", "kvm", "ptrace"}
)

// Default returns the configuration of a machine without any settings.
func Default(env func(string) string) Config {
	return Config{
		Data:      defaultData(env, os.Geteuid()),
		Engine:    "gvisor",
		Isolation: Isolation{Allowed: []string{"gvisor"}, Default: "gvisor"},
		Platform:  "systrap",
		Setuid:    true,
		Limits: Limits{
			CPU:    min(2, float64(runtime.NumCPU())),
			Memory: 2 << 30, Disk: 10 << 30, Processes: 1024, Files: 65536,
		},
		Timeout:          24 * time.Hour,
		ExecTimeout:      30 * time.Minute,
		SuspendedTimeout: 30 * 24 * time.Hour,
		UsageInterval:    5 * time.Second,
		Quotas:           Quotas{Sandboxes: 100, Volumes: 1000},
		Pool:             1,
		PoolWarmUp:       "python3 -c pass",
		OutputBytes:      64 << 20,
		BuildCache:       20 << 30,
		Prices: Prices{CPUCoreSecond: 0.00003942, MemoryGiBSecond: 0.00000672, GPUSecond: modalGPUs(),
			Currency: "USD"},
		S3:             S3{Secret: s3Secret, MaxDeleteFiles: 20, MaxDeletePercent: 50},
		Refresh:        true,
		IdleExit:       10 * time.Minute,
		CertificateDir: "/usr/local/share/ca-certificates",
		ImageLimits:    ImageLimits{Bytes: 32 << 30, Files: 4_000_000},
		ImageGC:        ImageGC{Age: 7 * 24 * time.Hour, Sessions: 30 * 24 * time.Hour},
		Log:            Log{Level: slog.LevelInfo, Format: "text"},
		Server:         Server{Listen: "127.0.0.1:7777", SSHListen: NoListen, Rate: 200},
		Ports:          Ports{Domain: "*.localhost"},
		OIDC:           OIDC{Scopes: []string{"openid", "email", "profile"}, Groups: "groups"},
		Agents:         Agents{Default: "claude", Image: "agent", SpareLife: 30 * time.Minute, UploadBytes: 4 << 30},
		Model:          Model{Gateway: true},
		Notify:         Notify{Kinds: slices.Clone(NotifyKinds), Accounts: []string{"personal"}},
		Modal:          Modal{Listen: NoListen, App: "harvest", Image: "python:3.13-slim-bookworm"},
		Kubernetes: Kubernetes{Reach: "auto", CPU: 0.1, Memory: 256 << 20, Grace: time.Minute,
			MaxCPU: 8, MaxMemory: 32 << 30},
	}
}

func defaultData(env func(string) string, uid int) string {
	if uid == 0 {
		return "/var/lib/harvest"
	}
	if dir := env("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "harvest")
	}
	return filepath.Join(env("HOME"), ".local", "share", "harvest")
}

// Setting is the value of one key, as a flag sets it.
type Setting struct {
	Key    string // such as "limits.memory"
	Value  string
	Source string // where the user wrote it, such as "--memory"
}

// Load returns the configuration. Defaults come first; the file overrides them, the environment (HARVEST_ and
// the key in upper case, '_' for '.') overrides the file, and flags override the environment, later ones the
// earlier. The file is path, or else the one that HARVEST_CONFIG names, or else config.yaml in the data
// directory or in /etc/harvest if it exists. The error, of kind Invalid, lists all problems at once.
func Load(path string, env func(string) string, flags ...Setting) (Config, error) {
	c := Default(env)
	c.sources = map[string]string{}
	over := fromEnv(env)
	over = append(over, flags...)

	fromFile, problems := readFile(path, env, dataDir(c.Data, over))
	for _, s := range append(fromFile, over...) {
		if problem := c.set(s); problem != "" {
			problems = append(problems, problem)
		}
	}
	problems = append(problems, c.problems()...)
	return c, report(problems)
}

// Source returns the origin of the key's value: "default", a file and line, an environment variable or a flag.
func (c Config) Source(key string) string {
	if s := c.sources[key]; s != "" {
		return s
	}
	return "default"
}

// set applies s. It returns a problem in one line, or "".
func (c *Config) set(s Setting) string {
	o, ok := find(s.Key)
	if !ok {
		return s.Source + ": unknown option " + s.Key + nearest(s.Key)
	}
	c.sources[s.Key] = s.Source
	if err := o.field(c).Set(s.Value); err != nil {
		return s.Source + ": " + s.Key + ": invalid value " + quote(s.Value) + "; " + err.Error()
	}
	return ""
}

// problems checks every value on its own, and then the dependencies between values.
func (c Config) problems() []string {
	var all []string
	for _, o := range options {
		if want := o.check(c); want != "" {
			all = append(all, c.Source(o.key)+": "+o.key+": invalid value "+quote(o.field(&c).String())+"; "+want)
		}
	}
	if q := c.Quotas; q.CPU > 0 && c.Limits.CPU > q.CPU {
		all = append(all,
			c.Source("limits.cpu")+": limits.cpu exceeds quotas.cpu, so no sandbox could start; lower the former or "+
				"raise the latter")
	}
	if q := c.Quotas; q.Memory > 0 && c.Limits.Memory > q.Memory {
		all = append(all,
			c.Source("limits.memory")+": limits.memory exceeds quotas.memory, so no sandbox could start; lower the "+
				"former or raise the latter")
	}
	if q := c.Quotas; q.Sandboxes > 0 && c.Pool > q.Sandboxes {
		all = append(all, c.Source("pool")+": pool exceeds quotas.sandboxes; lower the former or raise the latter")
	}
	if i := c.Isolation; !slices.Contains(i.Allowed, i.Default) {
		all = append(all, c.Source("isolation.default")+": isolation.default "+quote(i.Default)+
			" is not in isolation.allowed; add it there, or choose another one")
	}
	return append(all, c.serverProblems()...)
}

// serverProblems checks the dependencies between the server options.
func (c Config) serverProblems() []string {
	var all []string
	add := func(key, text string) { all = append(all, c.Source(key)+": "+text) }
	s := c.Server
	if (s.Cert == "") != (s.Key == "") {
		add("server.tls_cert", "server.tls_cert and server.tls_key need each other; set both, or neither")
	}
	if s.Cert != "" && s.ACMEDomain != "" {
		add("server.acme_domain", "server.tls_cert and server.acme_domain exclude each other; set one of them")
	}
	if s.ACMEDomain != "" && c.Ports.Domain != "" && c.Source("ports.domain") != "default" {
		add("ports.domain",
			"server.acme_domain obtains a certificate for one name, but not for ports.domain; set server.tls_cert "+
				"and server.tls_key to a certificate for both")
	}
	c.oidcProblems(add)
	if c.S3.Endpoint == Embedded && strings.Contains(c.S3.Bucket, ".") {
		add("s3.bucket",
			"s3.bucket "+quote(c.S3.Bucket)+
				" has a dot, which the embedded S3 reserves for the account in a bucket's name; choose another one")
	}
	if host, _, err := net.SplitHostPort(s.Listen); err == nil && !s.Insecure && s.Cert == "" && s.ACMEDomain == "" &&
		!isLoopback(host) {
		add("server.listen",
			"server.listen "+quote(s.Listen)+" is reachable by other machines, and keys must not be sent "+
				"unencrypted; set server.tls_cert and server.tls_key, or "+
				"server.acme_domain, or listen on 127.0.0.1, or allow it with server.insecure (harvest up --insecure)")
	}
	if host, _, err := net.SplitHostPort(c.Modal.Listen); err == nil && !s.Insecure && s.Cert == "" &&
		s.ACMEDomain == "" && !isLoopback(host) {
		add("modal.listen",
			"modal.listen "+quote(c.Modal.Listen)+" is reachable by other machines, and keys must not be sent "+
				"unencrypted; set server.tls_cert and server.tls_key, or "+
				"listen on 127.0.0.1")
	}
	return all
}

// isLoopback reports whether only this machine can connect to host.
func isLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && addr.IsLoopback()
}

func report(problems []string) error {
	switch len(problems) {
	case 0:
		return nil
	case 1:
		return errors.Newf(errors.Invalid, "invalid configuration: %s", problems[0])
	}
	return errors.Newf(errors.Invalid, "invalid configuration: %d problems:\n  %s", len(problems),
		strings.Join(problems, "\n  "))
}

// Effective returns the configuration as a YAML file that Load accepts, with the purpose and the origin of each
// option.
func (c Config) Effective() string {
	var b strings.Builder
	section := ""
	for _, o := range options {
		name, indent := o.key, ""
		if head, tail, nested := strings.Cut(o.key, "."); nested {
			if head != section {
				b.WriteString(head + ":\n")
			}
			section, name, indent = head, tail, "  "
		}
		text := o.field(&c).String()
		switch o.field(&c).(type) {
		case *textValue, *listValue, *secretValue:
			text = quote(text)
		}
		line := indent + name + ": " + text
		b.WriteString(line + strings.Repeat(" ", max(1, 48-len(line))) + "# " + c.Source(o.key) + " · " + o.help + "\n")
	}
	return b.String()
}

// quote returns text in YAML syntax, without quotes where they are not needed.
func quote(text string) string {
	out, err := yaml.Marshal(text)
	plain := strings.TrimSuffix(string(out), "\n")
	settings, _ := parse("", []byte("text: "+plain+"\n"))
	if err != nil || len(settings) != 1 || settings[0].Value != text {
		return strconv.Quote(text) // as for tabs, which Marshal does not quote
	}
	return plain
}
