package devcontainer

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Command is a lifecycle command. At most one of its fields is set.
type Command struct {
	Shell string   // text for /bin/sh -c
	Args  []string // a program and its arguments, without a shell
	// Parallel are commands to run at the same time, by name. They have no Parallel themselves.
	Parallel map[string]Command
}

// IsZero reports whether there is nothing to run.
func (c Command) IsZero() bool {
	for _, part := range c.Parallel {
		if !part.IsZero() {
			return false
		}
	}
	return c.Shell == "" && len(c.Args) == 0
}

// Argv returns the program to execute and its arguments for a command that is not Parallel.
func (c Command) Argv() []string {
	if c.Shell != "" {
		return []string{"/bin/sh", "-c", c.Shell}
	}
	return c.Args
}

// UnmarshalJSON decodes a string, an array of strings, or an object of these.
func (c *Command) UnmarshalJSON(data []byte) error {
	*c = Command{}
	switch data[0] {
	case '"':
		return json.Unmarshal(data, &c.Shell)
	case '[':
		return json.Unmarshal(data, &c.Args)
	}
	return json.Unmarshal(data, &c.Parallel)
}

// MarshalJSON returns the form that UnmarshalJSON decodes.
func (c Command) MarshalJSON() ([]byte, error) {
	switch {
	case c.Parallel != nil:
		return json.Marshal(c.Parallel)
	case c.Args != nil:
		return json.Marshal(c.Args)
	}
	return json.Marshal(c.Shell)
}

// Strings is a list that may be written as a single string.
type Strings []string

// UnmarshalJSON decodes a string or an array of strings.
func (s *Strings) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		*s = make(Strings, 1)
		return json.Unmarshal(data, &(*s)[0])
	}
	return json.Unmarshal(data, (*[]string)(s))
}

// UnmarshalJSON decodes an object whose values are strings, booleans or numbers, or a short form.
func (v *Values) UnmarshalJSON(data []byte) error {
	*v = Values{}
	switch data[0] {
	case '"':
		var version string
		err := json.Unmarshal(data, &version)
		*v = Values{"version": version}
		return err
	case 't', 'f':
		return nil
	}
	var all map[string]scalar
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	for name, value := range all {
		(*v)[name] = string(value)
	}
	return nil
}

// scalar is a string, or the text of a boolean or number.
type scalar string

func (s *scalar) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, (*string)(s))
	}
	*s = scalar(data)
	return nil
}

// Env is a list of environment variables in the order of the file.
type Env []Variable

// Variable is an environment variable.
type Variable struct {
	Name, Value string
	Unset       bool // remove the variable
}

// UnmarshalJSON decodes an object of strings, in which null means Unset.
func (e *Env) UnmarshalJSON(data []byte) error {
	*e = Env{}
	dec := json.NewDecoder(bytes.NewReader(data))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var value *scalar
		if err := dec.Decode(&value); err != nil {
			return err
		}
		v := Variable{Name: name.(string), Unset: value == nil}
		if value != nil {
			v.Value = string(*value)
		}
		*e = append(*e, v)
	}
	return nil
}

// MarshalJSON returns the form that UnmarshalJSON decodes.
func (e Env) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, v := range e {
		if i > 0 {
			b.WriteByte(',')
		}
		value := any(v.Value)
		if v.Unset {
			value = nil
		}
		for j, part := range []any{v.Name, value} {
			if j > 0 {
				b.WriteByte(':')
			}
			text, err := json.Marshal(part)
			if err != nil {
				return nil, errors.Wrapf(err, "encode a variable")
			}
			b.Write(text)
		}
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Apply returns a copy of an environment with these variables.
func (e Env) Apply(env map[string]string) map[string]string {
	all := maps.Clone(env)
	if all == nil {
		all = map[string]string{}
	}
	for _, v := range e {
		if v.Unset {
			delete(all, v.Name)
		} else {
			all[v.Name] = v.Value
		}
	}
	return all
}

// over returns e with the variables of other, which take precedence.
func (e Env) over(other Env) Env {
	all := slices.Clone(e)
	for _, v := range other {
		if i := slices.IndexFunc(all, func(has Variable) bool { return has.Name == v.Name }); i >= 0 {
			all[i] = v
		} else {
			all = append(all, v)
		}
	}
	return all
}

// Mount is a mount of an environment.
type Mount struct {
	Type   string // "volume", "tmpfs" or "bind"
	Source string // name of a volume, or a path of the host
	Target string // path in the environment
	// Options are the other settings of the mount, such as "readonly", whose value may be "".
	Options map[string]string

	written json.RawMessage // form in the file
}

// Supported reports whether sandboxes have mounts of this type.
func (m Mount) Supported() bool { return m.Type == "volume" || m.Type == "tmpfs" }

// ReadOnly reports whether the mount cannot be written to.
func (m Mount) ReadOnly() bool {
	for _, name := range []string{"readonly", "ro"} {
		if value, ok := m.Options[name]; ok {
			on, err := strconv.ParseBool(value)
			return value == "" || err == nil && on
		}
	}
	return false
}

// UnmarshalJSON decodes an object, or the value of Docker's flag --mount.
func (m *Mount) UnmarshalJSON(data []byte) error {
	*m = Mount{written: bytes.Clone(data)}
	if data[0] == '{' {
		var all map[string]scalar
		if err := json.Unmarshal(data, &all); err != nil {
			return err
		}
		for name, value := range all {
			m.set(name, string(value))
		}
		return nil
	}
	var text string
	if err := json.Unmarshal(data, &text); err != nil {
		return err
	}
	fields, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil {
		fields = strings.Split(text, ",") // such as a lone quote
	}
	for _, field := range fields {
		name, value, _ := strings.Cut(field, "=")
		m.set(strings.ToLower(strings.TrimSpace(name)), value)
	}
	if m.Type == "" {
		m.Type = "volume"
	}
	return nil
}

func (m *Mount) set(name, value string) {
	switch name {
	case "type":
		m.Type = value
	case "source", "src":
		m.Source = value
	case "target", "destination", "dst":
		m.Target = value
	default:
		if m.Options == nil {
			m.Options = map[string]string{}
		}
		m.Options[name] = value
	}
}

// MarshalJSON returns the form of the file.
func (m Mount) MarshalJSON() ([]byte, error) {
	if m.written != nil {
		return m.written, nil
	}
	return json.Marshal(map[string]string{"type": m.Type, "source": m.Source, "target": m.Target})
}

// Port is a port of the environment, such as "3000", or of a host that it reaches, such as "db:5432".
type Port string

// Split returns the host, "localhost" for a port of the environment itself, and the number.
func (p Port) Split() (host string, number int, err error) {
	host, text, ok := strings.Cut(string(p), ":")
	if !ok {
		host, text = "localhost", string(p)
	}
	number, err = strconv.Atoi(text)
	if err != nil || number < 1 || number > 65535 {
		err := errors.Newf(errors.Invalid, "port %.100q: not a port", string(p))
		return "", 0, errors.Remedy(err, `write a number, or a port of another host as "db:5432"`)
	}
	return host, number, nil
}

// UnmarshalJSON decodes a number or a string.
func (p *Port) UnmarshalJSON(data []byte) error { return (*scalar)(p).UnmarshalJSON(data) }

// MarshalJSON returns a number for a port of the environment itself, and otherwise a string.
func (p Port) MarshalJSON() ([]byte, error) {
	if host, number, err := p.Split(); err == nil && host == "localhost" {
		return json.Marshal(number)
	}
	return json.Marshal(string(p))
}

// GPU is the demand for a graphics processor.
type GPU struct {
	Wanted   bool // false for "no"
	Optional bool // the environment is usable without one
	Cores    int
	Memory   string
}

// gpuObject is the detailed form of GPU.
type gpuObject struct {
	Cores  int    `json:"cores,omitempty"`
	Memory string `json:"memory,omitempty"`
}

// UnmarshalJSON decodes a boolean, "optional", or an object.
func (g *GPU) UnmarshalJSON(data []byte) error {
	switch data[0] {
	case 't', 'f':
		*g = GPU{Wanted: data[0] == 't'}
		return nil
	case '"':
		*g = GPU{Wanted: true, Optional: true}
		return nil
	}
	var o gpuObject
	err := json.Unmarshal(data, &o)
	*g = GPU{Wanted: true, Cores: o.Cores, Memory: o.Memory}
	return err
}

// MarshalJSON returns the form that UnmarshalJSON decodes.
func (g GPU) MarshalJSON() ([]byte, error) {
	switch {
	case g.Cores > 0 || g.Memory != "":
		return json.Marshal(gpuObject{g.Cores, g.Memory})
	case g.Optional:
		return json.Marshal("optional")
	}
	return json.Marshal(g.Wanted)
}

// Bytes returns a size such as "8gb" in bytes; 0 for another text.
func Bytes(size string) int64 {
	number := strings.TrimRight(size, "tgmkb")
	n, err := strconv.ParseInt(number, 10, 64)
	shift, ok := map[string]int{"": 0, "kb": 10, "mb": 20, "gb": 30, "tb": 40}[size[len(number):]]
	if err != nil || !ok || n > 1<<(62-shift) {
		return 0
	}
	return n << shift
}
