package devcontainer

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/tailscale/hujson"

	"github.com/RelevanceAI/harvest/client/errors"
)

// FeatureFile is the file in a feature that describes it.
const FeatureFile = "devcontainer-feature.json"

// Feature is a part that is installed in an image, with a script install.sh.
type Feature struct {
	Entry

	Version          string            `json:"version,omitempty"`
	Name             string            `json:"name,omitempty"`
	Description      string            `json:"description,omitempty"`
	DocumentationURL string            `json:"documentationURL,omitempty"`
	Options          map[string]Option `json:"options,omitempty"`
	InstallsAfter    []string          `json:"installsAfter,omitempty"` // references without versions
	DependsOn        map[string]Values `json:"dependsOn,omitempty"`     // by reference
	LegacyIDs        []string          `json:"legacyIds,omitempty"`
	CurrentID        string            `json:"currentId,omitempty"`
	Deprecated       bool              `json:"deprecated,omitempty"`

	// A source of features sets the fields below, except Values.

	Reference Reference `json:"-"`
	Digest    string    `json:"-"` // of the manifest or archive; "" for a local feature
	Dir       string    `json:"-"` // directory with the files, in the context of Dockerfile
	Values    Values    `json:"-"` // options that the user or another feature chose; set by Resolve
}

// Option is an option of a feature.
type Option struct {
	Type    string  // "string" or "boolean"
	Default *string // nil without one
}

// UnmarshalJSON decodes the description of an option.
func (o *Option) UnmarshalJSON(data []byte) error {
	var all struct {
		Type    string
		Default *scalar
	}
	err := json.Unmarshal(data, &all)
	*o = Option{all.Type, (*string)(all.Default)}
	return err
}

// ParseFeature decodes a devcontainer-feature.json. Errors are Invalid, or Exhausted for a file that is too large.
func ParseFeature(file string, text []byte) (*Feature, error) {
	doc, err := parse(file, text)
	if err != nil {
		return nil, err
	}
	if err := doc.check(featureShape); err != nil {
		return nil, err
	}
	f := &Feature{}
	if err := decode(doc.root, f); err != nil {
		return nil, errors.Wrapf(err, "decode %s", file)
	}
	if !featureID.MatchString(f.ID) {
		err := errors.Newf(errors.Invalid, "%s: invalid id %.100q", file, f.ID)
		return nil, errors.Remedy(err, `set "id" to the name of the feature's directory`)
	}
	f.raw = doc.root
	return f, nil
}

// featureID matches the ids of features, which are parts of paths.
var featureID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)

// featureEntry lists the properties of a feature that an image keeps in its metadata.
var featureEntry = []string{"onCreateCommand", "updateContentCommand", "postCreateCommand", "postStartCommand",
	"postAttachCommand", "init", "privileged", "capAdd", "securityOpt", "entrypoint", "mounts", "customizations"}

// entry returns the properties that an image keeps in its metadata.
func (f *Feature) entry() (Entry, error) {
	raw := pick(f.raw, featureEntry)
	obj := raw.Value.(*hujson.Object)
	id := hujson.ObjectMember{Name: hujson.Value{Value: hujson.String("id")},
		Value: hujson.Value{Value: hujson.String(f.Reference.Text)}}
	obj.Members = append([]hujson.ObjectMember{id}, obj.Members...)
	return decodeEntry(raw)
}

// Env returns the options of the feature as environment variables of its script, sorted. Options that are not chosen
// have their defaults. Options that the feature does not declare are passed, too.
func (f *Feature) Env() Env {
	values := Values{}
	for id, option := range f.Options {
		if option.Default != nil {
			values[id] = *option.Default
		}
	}
	maps.Copy(values, f.Values)
	var env Env
	for _, id := range slices.Sorted(maps.Keys(values)) {
		env = env.over(Env{{Name: variableOf(id), Value: values[id]}})
	}
	return env
}

var (
	notWord = regexp.MustCompile(`[^A-Za-z0-9_]`)
	noStart = regexp.MustCompile(`^[0-9_]+`)
)

// variableOf returns the name of the environment variable of an option.
func variableOf(option string) string {
	return strings.ToUpper(noStart.ReplaceAllString(notWord.ReplaceAllString(option, "_"), "_"))
}

// Reference says where a feature is. Exactly one of Local, URL and Registry is set.
type Reference struct {
	Text  string // as written
	Local string // path of the directory, relative to that of the devcontainer.json
	URL   string // of an archive

	Registry   string // host, such as "ghcr.io"
	Repository string // "devcontainers/features/go"
	Tag        string // "latest" without a version; "" with Digest
	Digest     string // "sha256:…"
}

// renamed are features that had names without a registry before 2023, and the names that they have now. Those without a
// new name kept theirs.
var renamed = map[string]string{"aws-cli": "", "azure-cli": "", "desktop-lite": "", "docker-in-docker": "",
	"docker-from-docker": "", "dotnet": "", "git": "", "git-lfs": "", "github-cli": "", "java": "",
	"kubectl-helm-minikube": "", "node": "", "powershell": "", "python": "", "ruby": "", "rust": "", "sshd": "",
	"terraform": "", "golang": "go", "common": "common-utils"}

// ParseReference parses the reference of a feature. The error is Invalid, or Unsupported for some forms of before 2023.
func ParseReference(text string) (Reference, error) {
	r := Reference{Text: text}
	if id, ok := renamed[text]; ok {
		r.Registry, r.Repository, r.Tag = "ghcr.io", "devcontainers/features/"+cmp.Or(id, text), "1"
		return r, nil
	}
	switch {
	case len(text) > 500 || strings.ContainsFunc(text, unicode.IsControl):
		return r, badReference(errors.Newf(errors.Invalid, "feature %.200q: not a reference", text))
	case strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../"):
		r.Local = path.Clean(text)
		return r, nil
	case strings.HasPrefix(text, "https://"):
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.User != nil {
			return r, badReference(errors.Newf(errors.Invalid, "feature %.200q: not the address of an archive", text))
		}
		r.URL = text
		return r, nil
	case strings.HasPrefix(text, "/") || strings.Contains(text, "://"):
		return r, badReference(errors.Newf(errors.Invalid, "feature %.200q: not a reference", text))
	}
	registry, rest, _ := strings.Cut(strings.ToLower(text), "/")
	if !strings.ContainsAny(registry, ".:") && registry != "localhost" {
		err := errors.Newf(errors.Unsupported, "feature %.200q: names without a registry are no longer in use", text)
		return r, errors.Remedy(err, "write ghcr.io/devcontainers/features/NAME:1; see https://containers.dev/features")
	}
	ref, err := name.ParseReference(registry+"/"+rest, name.WithDefaultTag("latest"))
	if err != nil || !repository.MatchString(ref.Context().RepositoryStr()) {
		return r, badReference(errors.Newf(errors.Invalid, "feature %.200q: not a reference", text))
	}
	r.Registry, r.Repository = registry, ref.Context().RepositoryStr()
	if d, ok := ref.(name.Digest); ok {
		r.Digest = d.DigestStr()
	} else {
		r.Tag = ref.Identifier()
	}
	return r, nil
}

func badReference(err error) error {
	return errors.Remedy(err, "write ghcr.io/owner/features/name:1, ./directory, or https://host/name.tgz")
}

// repository matches the names of repositories with at least two elements, as the distribution specification has them.
var repository = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+$`)

// namespace returns the registry and the repository without the last element.
func (r Reference) namespace() string { return r.Registry + "/" + path.Dir(r.Repository) }

// id returns the last element of the repository.
func (r Reference) id() string { return path.Base(r.Repository) }

// kind orders references of different kinds.
func (r Reference) kind() string {
	switch {
	case r.Local != "":
		return "local"
	case r.URL != "":
		return "url"
	}
	return "registry"
}

var version = regexp.MustCompile(`[:@][^/]*$`)

// withoutVersion returns a reference without its tag or digest.
func withoutVersion(text string) string { return version.ReplaceAllString(text, "") }
