package secret

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// known says which variables of a personal machine's environment are picked up, and as which secret.
var known = []struct {
	secret string
	keys   []string
}{
	{"anthropic", []string{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"}},
	{"aws", []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
		"AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_BEARER_TOKEN_BEDROCK"}},
	{"gemini", []string{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
	{"github", []string{"GITHUB_TOKEN", "GH_TOKEN", "GITHUB_APP_ID", "GITHUB_APP_PRIVATE_KEY",
		"GITHUB_APP_INSTALLATION_ID", "GITHUB_HOST", "GITHUB_API_URL"}},
	{"linear", []string{"LINEAR_API_KEY"}},
	{"modal", []string{"MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"}},
	{"openai", []string{"OPENAI_API_KEY"}},
	{"openrouter", []string{"OPENROUTER_API_KEY"}},
	{"registry", []string{"REGISTRY_SERVER", "REGISTRY_USERNAME", "REGISTRY_PASSWORD"}},
	{"sentry", []string{"SENTRY_AUTH_TOKEN"}},
}

// Known returns the names of all environment variables that FromEnviron looks for.
func Known() []string {
	var all []string
	for _, k := range known {
		all = append(all, k.keys...)
	}
	return all
}

// FromEnviron returns the secrets that an environment, as os.Environ gives it, holds: "anthropic" with
// ANTHROPIC_API_KEY, "github" with GITHUB_TOKEN and so on. Empty variables, and a region or address without any
// credential, count as missing.
func FromEnviron(environ []string) map[string]Pairs {
	values := map[string]string{}
	for _, pair := range environ {
		if key, value, _ := strings.Cut(pair, "="); value != "" {
			values[key] = value
		}
	}
	found := map[string]Pairs{}
	for _, k := range known {
		p, confidential := Pairs{}, false
		for _, key := range k.keys {
			if value := values[key]; value != "" {
				p[key] = value
				confidential = confidential || !isPlain(key)
			}
		}
		if confidential && p.Check() == nil {
			found[k.secret] = p
		}
	}
	return found
}

// Login is what a registry of images asks for.
type Login struct {
	Server   string // host, perhaps with a port
	User     string
	Password config.Secret
}

const dockerHub = "docker.io"

// githubKeys hold tokens that ghcr.io takes too.
var githubKeys = []string{"GITHUB_TOKEN", "GH_TOKEN"}

func isLogin(key string) bool { return key == "REGISTRY_PASSWORD" || slices.Contains(githubKeys, key) }

// Login returns what p has for the registry at host, such as "ghcr.io" or "docker.io": REGISTRY_USERNAME and
// REGISTRY_PASSWORD for the host in REGISTRY_SERVER (without one, Docker Hub's), or GITHUB_TOKEN for ghcr.io.
func (p Pairs) Login(host string) (Login, bool) {
	host = registryHost(host)
	if password := p["REGISTRY_PASSWORD"]; password != "" && registryHost(p["REGISTRY_SERVER"]) == host {
		return Login{host, p["REGISTRY_USERNAME"], config.Secret(password)}, true
	}
	for _, key := range githubKeys {
		if token := p[key]; token != "" && host == "ghcr.io" {
			return Login{host, "x-access-token", config.Secret(token)}, true // ghcr.io looks at the token only
		}
	}
	return Login{}, false
}

// registryHost strips what people write around a registry's host, and gives Docker Hub one name.
func registryHost(server string) string {
	_, rest, found := strings.Cut(server, "://")
	if found {
		server = rest
	}
	host, _, _ := strings.Cut(server, "/")
	switch host = strings.ToLower(host); host {
	case "", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com":
		return dockerHub
	}
	return host
}

// Registry returns the login for the registry at host from the account's secrets, the named one if name is not "":
// otherwise the first by name that has one; ok is false if none has. Its form suits whoever pulls images.
func (v *Vault) Registry(ctx context.Context, account, name, host string) (l Login, ok bool, err error) {
	return first(ctx, v, account, name, isLogin, func(_ string, p Pairs) (Login, bool) { return p.Login(host) })
}

// Git is Registry for the git server at host.
func (v *Vault) Git(ctx context.Context, account, name, host string) (g Git, ok bool, err error) {
	return first(ctx, v, account, name, isGit, func(found string, p Pairs) (Git, bool) {
		g, ok := p.Git(host)
		g.Secret = found
		return g, ok
	})
}

// first returns what get finds in the named secret, or in the first by name that has a key that may count.
func first[T any](ctx context.Context, v *Vault, account, name string, counts func(key string) bool,
	get func(name string, p Pairs) (T, bool)) (found T, ok bool, err error) {
	names := []string{name}
	if name == "" {
		all, err := v.List(ctx, account)
		if err != nil {
			return found, false, err
		}
		names = names[:0]
		for _, s := range all {
			if slices.ContainsFunc(s.Keys, counts) {
				names = append(names, s.Name)
			}
		}
	}
	for _, n := range names {
		if err := v.current(ctx, account, n); err != nil {
			return found, false, err
		}
		v.mu.Lock()
		p, err := v.reveal(ctx, account, n)
		v.mu.Unlock()
		if errors.Is(err, errors.NotFound) && name == "" {
			continue // deleted meanwhile
		}
		if err != nil {
			return found, false, err
		}
		if got, ok := get(n, p); ok {
			return got, true, nil
		}
	}
	return found, false, nil
}

// Git is what a git server, and GitHub's API, ask for: a user and a password, which may be a token, or what gets a
// token as an App.
type Git struct {
	Secret       string // its name; "" if it is not known
	Host         string // perhaps with a port
	User         string
	Password     config.Secret
	API          string        // address of GitHub's REST API; "" means what goes with Host
	App          string        // id of a GitHub App; then there is no Password
	Key          config.Secret // its private key, as PEM
	Installation string        // its id; "" means that of the repository
}

const gitHub = "github.com"

func isGit(key string) bool {
	return key == "GIT_PASSWORD" || key == "GITHUB_APP_PRIVATE_KEY" || slices.Contains(githubKeys, key)
}

// Git returns what p has for the git server at host, such as "github.com": GITHUB_TOKEN, or GITHUB_APP_ID and
// GITHUB_APP_PRIVATE_KEY, for the host in GITHUB_HOST (without one, github.com); or GIT_USERNAME and GIT_PASSWORD for
// that in GIT_HOST.
func (p Pairs) Git(host string) (Git, bool) {
	host = strings.ToLower(host)
	if password := p["GIT_PASSWORD"]; password != "" && p["GIT_HOST"] != "" && strings.ToLower(p["GIT_HOST"]) == host {
		return Git{Host: host, User: cmp.Or(p["GIT_USERNAME"], "git"), Password: config.Secret(password),
			API: p["GITHUB_API_URL"]}, true
	}
	if strings.ToLower(cmp.Or(p["GITHUB_HOST"], gitHub)) != host {
		return Git{}, false
	}
	g := Git{Host: host, User: "x-access-token", API: p["GITHUB_API_URL"]}
	for _, key := range githubKeys {
		if token := p[key]; token != "" {
			g.Password = config.Secret(token)
			return g, true
		}
	}
	g.App, g.Key, g.Installation = p["GITHUB_APP_ID"], config.Secret(p["GITHUB_APP_PRIVATE_KEY"]),
		p["GITHUB_APP_INSTALLATION_ID"]
	return g, g.App != "" && g.Key != ""
}

// Find returns the first secret, of those that are named or, if none of them has it, of all of the account by name,
// that has one of the keys; no name and nil if none has. Logins come after other secrets.
func (v *Vault) Find(ctx context.Context, account string, named, keys []string) (found string, p Pairs, err error) {
	all, err := v.List(ctx, account)
	if err != nil {
		return "", nil, err
	}
	names := slices.Clone(named)
	slices.SortStableFunc(all, func(a, b Secret) int { return cmp.Compare(kindOf(a), kindOf(b)) })
	for _, s := range all {
		if slices.ContainsFunc(s.Keys, func(k string) bool { return slices.Contains(keys, k) }) {
			names = append(names, s.Name)
		}
	}
	for _, name := range names {
		if err := v.current(ctx, account, name); err != nil {
			return "", nil, err
		}
		v.mu.Lock()
		p, err := v.reveal(ctx, account, name)
		v.mu.Unlock()
		if errors.Is(err, errors.NotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return "", nil, err
		}
		for _, key := range keys {
			if p[key] != "" {
				return name, p, nil
			}
		}
	}
	return "", nil, nil
}

// kindOf orders secrets for Find.
func kindOf(s Secret) int {
	if s.Login != nil {
		return 1
	}
	return 0
}

// AWS is what S3 and Bedrock ask for.
type AWS struct {
	AccessKeyID     string        // "" where the credentials are the machine's, or come of a web identity
	SecretAccessKey config.Secret // "" without AccessKeyID
	SessionToken    config.Secret // "" for long-lived keys
	Region          string        // "" if the secret does not say
	Endpoint        string        // of S3; "" means Amazon's own
	PathStyle       bool          // the bucket is in the path, not in the host name

	RoleARN    string // a role to assume with these credentials; "" for none
	ExternalID string // that the role asks for; "" for none
	TokenFile  string // of this machine, with the web identity that assumes the role; "" for none
	STS        string // address of the service that assumes roles; "" means Amazon's own
	Machine    bool   // the credentials are those that the AWS SDK finds on this machine
}

// PathStyle is the key of a secret whose value is "true" if buckets are in the path, as the configuration has it for
// the server's own S3.
const PathStyle = "AWS_S3_FORCE_PATH_STYLE"

// FromMachine is the key of a secret whose value is "true" if the credentials are not in it, but those of the machine
// that the server runs on: its environment, ~/.aws, the role of its instance or container.
const FromMachine = "AWS_S3_FROM_MACHINE"

// AWS returns p's credentials for Amazon Web Services: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, and if present
// AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, PathStyle,
// AWS_ROLE_ARN, AWS_EXTERNAL_ID and AWS_ENDPOINT_URL_STS. Instead of the first two there may be
// AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, or FromMachine: what these name belongs to who runs the server, and
// the caller has to see that nobody else uses it. Invalid if one is missing that is needed.
func (p Pairs) AWS() (AWS, error) {
	a := AWS{
		AccessKeyID: p["AWS_ACCESS_KEY_ID"], SecretAccessKey: config.Secret(p["AWS_SECRET_ACCESS_KEY"]),
		SessionToken: config.Secret(p["AWS_SESSION_TOKEN"]),
		Region:       cmp.Or(p["AWS_REGION"], p["AWS_DEFAULT_REGION"]), Endpoint: cmp.Or(p["AWS_ENDPOINT_URL_S3"],
			p["AWS_ENDPOINT_URL"]),
		PathStyle: p[PathStyle] == "true",
		RoleARN:   p["AWS_ROLE_ARN"], ExternalID: p["AWS_EXTERNAL_ID"], TokenFile: p["AWS_WEB_IDENTITY_TOKEN_FILE"],
		STS:     p["AWS_ENDPOINT_URL_STS"],
		Machine: p[FromMachine] == "true",
	}
	if a.TokenFile != "" && a.RoleARN == "" {
		return AWS{}, errors.Remedy(errors.Newf(errors.Invalid,
			"the secret names a web identity, but no role to assume with it"), "give it AWS_ROLE_ARN")
	}
	if (a.AccessKeyID == "" || a.SecretAccessKey == "") && !a.OfMachine() {
		return AWS{}, errors.Remedy(errors.Newf(errors.Invalid, "the secret has no AWS credentials"),
			"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
	}
	return a, nil
}

// OfMachine reports whether credentials are the machine's, and not of whose secret it is.
func (a AWS) OfMachine() bool { return a.Machine || a.TokenFile != "" }
