package devcontainer

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"math/big"
	"path"
	"regexp"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Variables are the values that Substitute puts in. A variable without a value stays as it is written, for a later
// Substitute; in environments that are not nil, a missing variable is empty or has its default.
type Variables struct {
	// LocalEnv is the environment of the user, for ${localEnv:NAME}. It must not be that of the server.
	LocalEnv map[string]string
	// LocalFolder is the path of the repository for the user, ContainerFolder that in the environment. For metadata,
	// the latter must be that of Config.Folder.
	LocalFolder, ContainerFolder string
	// ContainerEnv is the environment of the image with the variables of containerEnv, for ${containerEnv:NAME}.
	ContainerEnv map[string]string
	ID           string // for ${devcontainerId}; see ID
}

// variable matches what may be a variable.
var variable = regexp.MustCompile(`\$\{([^\n\r\x{2028}\x{2029}]*?)\}`)

// Substitute returns the configuration with the values of variables. It returns Invalid for a variable without a
// name, and for a value that a property cannot have.
func (c *Config) Substitute(v Variables) (*Config, error) {
	folder, err := c.Folder(v)
	if err != nil {
		return nil, err
	}
	v.ContainerFolder = folder
	doc := *c.doc
	if doc.root, err = v.substitute(c.doc.root); err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "%s: %s", c.Path(), errors.Message(err))
	}
	return decodeConfig(&doc)
}

// Folder returns the path of the repository in the environment: workspaceFolder, else that of v.
func (c *Config) Folder(v Variables) (string, error) {
	if c.WorkspaceFolder == "" {
		return v.ContainerFolder, nil
	}
	folder, err := v.text(c.WorkspaceFolder)
	return folder, errors.Wrapf(err, "%s: workspaceFolder", c.Path())
}

// substitute returns a JSON value with the variables in its strings replaced. Names of members stay.
func (v Variables) substitute(value hujson.Value) (hujson.Value, error) {
	value = value.Clone()
	return value, v.walk(&value)
}

func (v Variables) walk(value *hujson.Value) error {
	switch x := value.Value.(type) {
	case hujson.Literal:
		if x.Kind() != '"' {
			return nil
		}
		text, err := v.text(x.String())
		if err != nil {
			return err
		}
		value.Value = hujson.String(text)
	case *hujson.Array:
		for i := range x.Elements {
			if err := v.walk(&x.Elements[i]); err != nil {
				return err
			}
		}
	case *hujson.Object:
		for i := range x.Members {
			if err := v.walk(&x.Members[i].Value); err != nil {
				return err
			}
		}
	}
	return nil
}

// text replaces the variables in a string. Values are not searched for variables.
func (v Variables) text(s string) (string, error) {
	var failed error
	s = variable.ReplaceAllStringFunc(s, func(written string) string {
		parts := strings.Split(written[2:len(written)-1], ":")
		value, ok := "", false
		switch parts[0] {
		case "env", "localEnv":
			value, ok = lookUp(v.LocalEnv, parts)
		case "containerEnv":
			value, ok = lookUp(v.ContainerEnv, parts)
		case "localWorkspaceFolder":
			value, ok = v.LocalFolder, v.LocalFolder != ""
		case "localWorkspaceFolderBasename":
			value, ok = path.Base(v.LocalFolder), v.LocalFolder != ""
		case "containerWorkspaceFolder":
			value, ok = v.ContainerFolder, v.ContainerFolder != ""
		case "containerWorkspaceFolderBasename":
			value, ok = path.Base(v.ContainerFolder), v.ContainerFolder != ""
		case "devcontainerId":
			value, ok = v.ID, v.ID != ""
		default:
			return written
		}
		if strings.HasSuffix(parts[0], "nv") && len(parts) == 1 {
			err := errors.Newf(errors.Invalid, "%.100q has no name of a variable", written)
			failed = errors.Remedy(err, "write it as ${%s:NAME} or ${%s:NAME:DEFAULT}", parts[0], parts[0])
		}
		if !ok {
			return written
		}
		return value
	})
	return s, failed
}

// lookUp returns the value of a variable: [kind, name, default, ...]. A default ends at a colon.
func lookUp(env map[string]string, parts []string) (string, bool) {
	if env == nil || len(parts) < 2 {
		return "", false
	}
	if value, ok := env[parts[1]]; ok {
		return value, true
	}
	if len(parts) > 2 {
		return parts[2], true
	}
	return "", true
}

// ID returns an identifier for an environment that these labels identify, as the specification defines it.
func ID(labels map[string]string) (string, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b) // which sorts the names
	enc.SetEscapeHTML(false)
	if err := enc.Encode(labels); err != nil {
		return "", errors.Wrapf(err, "encode labels")
	}
	sum := sha256.Sum256(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	text := new(big.Int).SetBytes(sum[:]).Text(32)
	return strings.Repeat("0", 52-len(text)) + text, nil
}
