package dockerfile

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
)

// step is an instruction that may change files, with its variables expanded.
type step struct {
	line int
	text string // one line for the log
	run  *run
	copy *copying
	dir  *workdir
}

// run is a RUN.
type run struct {
	Args    []string
	Env     []string // KEY=VALUE, sorted
	Dir     string
	User    string
	Network string
	Mounts  []mount `json:",omitempty"`
	Script  *script `json:",omitempty"`
	proxy   map[string]string
}

// script is a heredoc that runs as a program.
type script struct{ Name, Data string }

// mount is a --mount of a RUN.
type mount struct {
	Type     string
	From     string `json:",omitempty"`
	Source   string `json:",omitempty"`
	Target   string
	ID       string `json:",omitempty"`
	Sharing  string `json:",omitempty"`
	Env      string `json:",omitempty"`
	Mode     uint32
	UID, GID int
	ReadOnly bool
	Required bool
}

// copying is a COPY or an ADD.
type copying struct {
	From    string `json:"-"`
	Sources []string
	Inline  []instructions.SourceContent `json:"-"` // content is hashed with the files
	Dest    string
	Chown   string
	Chmod   string
	Exclude []string
	Parents bool
	Add     bool
	Unpack  bool
	Sum     string
}

// workdir is a WORKDIR.
type workdir struct{ Path, User string }

// proxies are arguments that every RUN gets without an ARG, and that are not part of cache keys.
var proxies = []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "FTP_PROXY", "ftp_proxy", "NO_PROXY",
	"no_proxy", "ALL_PROXY", "all_proxy"}

// state is the effect of the previous instructions.
type state struct {
	p      *plan
	s      *stage
	env    []string // of the image and of ARGs
	cmdSet bool
}

// expand converts a stage's instructions to steps and its configuration.
func (p *plan) expand(s *stage) error {
	switch {
	case s.base != nil:
		s.config = cloneConfig(s.base.config)
	case s.img != nil:
		s.config = cloneConfig(s.img.Config)
	}
	s.config.OnBuild = nil
	if s.config.Env == nil {
		s.config.Env = map[string]string{}
	}
	st := &state{p: p, s: s}
	for _, name := range slices.Sorted(maps.Keys(s.config.Env)) {
		st.env = append(st.env, name+"="+s.config.Env[name])
	}
	for _, c := range s.commands {
		if err := st.command(c); err != nil {
			return p.doc.at(c.line, err)
		}
	}
	return nil
}

func cloneConfig(c image.Config) image.Config {
	c.Env, c.Labels = maps.Clone(c.Env), maps.Clone(c.Labels)
	c.Ports, c.Volumes = slices.Clone(c.Ports), slices.Clone(c.Volumes)
	return c
}

// foreignError explains an error of BuildKit's packages.
func foreignError(err error) error {
	if err == nil || errors.KindOf(err) != errors.Internal {
		return err
	}
	return errors.Explainf(err, errors.Invalid, "%s", clip(err.Error()))
}

// command executes the parts of an instruction that need no machine.
func (st *state) command(c command) error {
	env := shell.EnvsFromSlice(st.env)
	if x, ok := c.Command.(instructions.SupportsSingleWordExpansion); ok {
		if err := x.Expand(func(word string) (string, error) {
			result, _, err := st.p.doc.lex.ProcessWord(word, env)
			return result, err
		}); err != nil {
			return foreignError(err)
		}
	}
	if x, ok := c.Command.(instructions.SupportsSingleWordExpansionRaw); ok {
		if err := x.ExpandRaw(func(word string) (string, error) {
			lex := shell.NewLex('\\')
			lex.SkipProcessQuotes = true
			result, _, err := lex.ProcessWord(word, env)
			return result, err
		}); err != nil {
			return foreignError(err)
		}
	}
	if st.configure(c.Command) {
		return nil
	}
	switch cmd := c.Command.(type) {
	case *instructions.EnvCommand:
		for _, kv := range cmd.Env {
			if kv.Key == "" || strings.ContainsAny(kv.Key, "=\x00") {
				return errors.Newf(errors.Invalid, "invalid variable %.100q", kv.Key)
			}
			st.s.config.Env[kv.Key] = kv.Value
			st.env = set(st.env, kv.Key, kv.Value)
		}
	case *instructions.WorkdirCommand:
		return st.workdir(cmd, c)
	case *instructions.UserCommand:
		if !userPattern().MatchString(cmd.User) {
			return errors.Remedy(errors.Newf(errors.Invalid, "invalid user %.100q", cmd.User),
				"give a name or a number, either followed by ':' and a group")
		}
		st.s.config.User = cmd.User
	case *instructions.ExposeCommand:
		return st.expose(cmd)
	case *instructions.HealthCheckCommand:
		text, err := json.Marshal(cmd.Health)
		st.s.config.Healthcheck = text
		return errors.Wrapf(err, "encode a health check")
	case *instructions.RunCommand:
		return st.run(cmd, c)
	case *instructions.CopyCommand:
		return st.copy(copying{From: cmd.From, Sources: cmd.SourcePaths, Inline: cmd.SourceContents, Dest: cmd.DestPath,
			Chown: cmd.Chown,
			Chmod: cmd.Chmod, Exclude: cmd.ExcludePatterns, Parents: cmd.Parents}, c)
	case *instructions.AddCommand:
		unpack := cmd.Unpack == nil || *cmd.Unpack
		if cmd.Unpack == nil && slices.ContainsFunc(cmd.SourcePaths, isURL) {
			unpack = false
		}
		return st.copy(copying{Add: true, Sources: cmd.SourcePaths, Inline: cmd.SourceContents, Dest: cmd.DestPath,
			Chown: cmd.Chown,
			Chmod: cmd.Chmod, Exclude: cmd.ExcludePatterns, Unpack: unpack, Sum: cmd.Checksum}, c)
	default:
		return errors.Newf(errors.Unsupported, "%s is not supported", strings.ToUpper(c.Name()))
	}
	return nil
}

// configure executes an instruction that only changes the configuration, and reports whether cmd is
// one.
func (st *state) configure(cmd instructions.Command) bool {
	config := &st.s.config
	switch cmd := cmd.(type) {
	case *instructions.ArgCommand:
		st.arg(cmd)
	case *instructions.LabelCommand:
		for _, kv := range cmd.Labels {
			st.label(kv.Key, kv.Value)
		}
	case *instructions.MaintainerCommand:
		st.label("maintainer", cmd.Maintainer)
	case *instructions.ShellCommand:
		config.Shell = cmd.Shell
	case *instructions.CmdCommand:
		config.Cmd, st.cmdSet = st.shell(cmd.ShellDependantCmdLine), true
	case *instructions.EntrypointCommand:
		config.Entrypoint = st.shell(cmd.ShellDependantCmdLine)
		if !st.cmdSet {
			config.Cmd = nil
		}
	case *instructions.VolumeCommand:
		for _, v := range cmd.Volumes {
			if !slices.Contains(config.Volumes, v) && v != "" {
				config.Volumes = append(config.Volumes, v)
			}
		}
	case *instructions.StopSignalCommand:
		config.StopSignal = cmd.Signal
	case *instructions.OnbuildCommand:
		config.OnBuild = append(slices.Clone(config.OnBuild), cmd.Expression)
	default:
		return false
	}
	return true
}

func (st *state) label(name, value string) {
	if st.s.config.Labels == nil {
		st.s.config.Labels = map[string]string{}
	}
	st.s.config.Labels[name] = value
}

// arg defines a build argument: as an environment variable of RUN, and as a variable for other
// instructions.
func (st *state) arg(cmd *instructions.ArgCommand) {
	for _, arg := range cmd.Args {
		value, ok := st.p.args[arg.Key]
		if !ok && arg.Value != nil {
			value, ok = *arg.Value, true
		}
		if !ok {
			value, ok = get(st.p.global, arg.Key)
		}
		if _, isEnv := st.s.config.Env[arg.Key]; ok && !isEnv { // ENV takes precedence, according to the reference
			st.env = set(st.env, arg.Key, value)
		}
	}
}

// shell returns the arguments of a command line.
func (st *state) shell(line instructions.ShellDependantCmdLine) []string {
	if !line.PrependShell {
		return line.CmdLine
	}
	sh := st.s.config.Shell
	if len(sh) == 0 {
		sh = []string{"/bin/sh", "-c"}
	}
	return append(slices.Clone(sh), strings.Join(line.CmdLine, " "))
}

func (st *state) workdir(cmd *instructions.WorkdirCommand, c command) error {
	if cmd.Path == "" {
		return errors.Newf(errors.Invalid, "WORKDIR is empty")
	}
	dir := strings.TrimSuffix(below(st.s.config.Dir, cmd.Path), "/")
	if dir == "" {
		dir = "/"
	}
	st.s.config.Dir = dir
	if dir != "/" {
		st.add(c, step{dir: &workdir{dir, st.s.config.User}})
	}
	return nil
}

func (st *state) add(c command, s step) {
	s.line = c.line
	if text, ok := c.Command.(interface{ String() string }); ok {
		s.text = clip(text.String())
	}
	st.s.steps = append(st.s.steps, s)
}

func (st *state) expose(cmd *instructions.ExposeCommand) error {
	for _, text := range cmd.Ports {
		words, err := st.p.doc.lex.ProcessWords(text, shell.EnvsFromSlice(st.env))
		if err != nil {
			return foreignError(err)
		}
		for _, word := range words {
			ports, err := parsePorts(word)
			if err != nil {
				return err
			}
			for _, port := range ports {
				if !slices.Contains(st.s.config.Ports, port) {
					st.s.config.Ports = append(st.s.config.Ports, port)
				}
			}
		}
	}
	return nil
}

// parsePorts parses "8080", "53/udp" or "3000-3005".
func parsePorts(word string) ([]string, error) {
	numbers, protocol, _ := strings.Cut(word, "/")
	protocol = strings.ToLower(cmp.Or(protocol, "tcp"))
	low, high, isRange := strings.Cut(numbers, "-")
	if !isRange {
		high = low
	}
	from, err1 := strconv.ParseUint(low, 10, 16)
	to, err2 := strconv.ParseUint(high, 10, 16)
	if err1 != nil || err2 != nil || from == 0 || to < from ||
		!slices.Contains([]string{"tcp", "udp", "sctp"}, protocol) {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "%.100q is not a port", word),
			"give a number such as 8080, 53/udp or 3000-3005")
	}
	var ports []string
	for n := from; n <= to; n++ {
		ports = append(ports, strconv.FormatUint(n, 10)+"/"+protocol)
	}
	return ports, nil
}

func (st *state) run(cmd *instructions.RunCommand, c command) error {
	r := &run{Dir: cmp.Or(st.s.config.Dir, "/"), User: st.s.config.User, Network: instructions.GetNetwork(cmd),
		proxy: map[string]string{}}
	if r.Network == instructions.NetworkHost || instructions.GetSecurity(cmd) == instructions.SecurityInsecure {
		return errors.Remedy(errors.Newf(errors.Denied,
			"RUN cannot have --network=host or --security=insecure: builds are as isolated as runs"), "leave it out")
	}
	if devices := instructions.GetDevices(cmd); len(devices) > 0 {
		return errors.Remedy(errors.Newf(errors.Unsupported, "RUN cannot have --device"), "leave it out")
	}
	if platform := st.p.foreign(st.s.platform); platform != "" {
		return errors.Remedy(errors.Newf(errors.Unsupported, "programs for %.50q cannot run on this machine", platform),
			"build for linux on this machine's processor, or leave RUN out of that stage")
	}
	line := cmd.ShellDependantCmdLine
	if len(line.Files) > 0 {
		if len(line.CmdLine) != 1 || !line.PrependShell {
			return errors.Newf(errors.Invalid, "a heredoc cannot stand there")
		}
		heredocs(&line, r)
	}
	if r.Args == nil {
		r.Args = st.shell(line)
	}
	if len(r.Args) == 0 || r.Args[0] == "" {
		return errors.Newf(errors.Invalid, "RUN has no command")
	}
	r.Env = slices.Sorted(slices.Values(st.env))
	for _, name := range proxies {
		if value, ok := st.p.args[name]; ok {
			if _, declared := get(st.env, name); !declared {
				r.proxy[name] = value
			}
		}
	}
	for _, m := range instructions.GetMounts(cmd) {
		if err := st.mount(r, m); err != nil {
			return err
		}
	}
	st.add(c, step{run: r})
	return nil
}

// heredocs handles heredocs like BuildKit: as a program, as a shell's input, or as part of a
// command line.
func heredocs(line *instructions.ShellDependantCmdLine, r *run) {
	first := line.Files[0]
	data := first.Data
	if first.Chomp {
		data = parser.ChompHeredocContent(data)
	}
	switch {
	case parser.MustParseHeredoc(line.CmdLine[0]) == nil:
		full := line.CmdLine[0]
		for _, f := range line.Files {
			full += "\n" + f.Data + f.Name
		}
		line.CmdLine = []string{full}
	case strings.HasPrefix(first.Data, "#!"):
		name := path.Base("/" + first.Name)
		r.Script = &script{name, data}
		r.Args = []string{scripts + "/" + name}
	default:
		line.CmdLine = []string{data}
	}
}

// scripts is the directory of heredocs that are programs. It is in memory and not part of the
// image.
const scripts = "/dev/pipes"

func (st *state) mount(r *run, from *instructions.Mount) error {
	m := mount{Type: string(from.Type), From: from.From, Source: from.Source, ID: from.CacheID,
		Sharing: string(from.CacheSharing), ReadOnly: from.ReadOnly, Required: from.Required}
	if from.Env != nil {
		m.Env = *from.Env
	}
	mode := uint64(0o755)
	switch from.Type {
	case instructions.MountTypeSSH:
		return errors.Remedy(errors.Newf(errors.Unsupported,
			"--mount=type=ssh is not supported: no key leaves its machine"), "use a token with --mount=type=secret")
	case instructions.MountTypeSecret:
		mode = 0o400
		m.ID = cmp.Or(m.ID, m.Source, path.Base(from.Target))
		if from.Env != nil && m.Env == "" {
			m.Env = m.ID
		}
		m.Source = ""
		if from.Target == "" && m.Env == "" {
			from.Target = "/run/secrets/" + path.Base(m.ID)
		}
	case instructions.MountTypeCache:
		if from.From != "" || from.Source != "" {
			return errors.Remedy(errors.Newf(errors.Unsupported, "a cache mount cannot begin with files of a stage"),
				"leave from and source out")
		}
	}
	if from.Mode != nil {
		mode = *from.Mode
	}
	m.Mode = uint32(mode & 0o7777)
	if from.UID != nil {
		m.UID = int(*from.UID)
	}
	if from.GID != nil {
		m.GID = int(*from.GID)
	}
	if from.Target == "" && m.Env == "" {
		return errors.Remedy(errors.Newf(errors.Invalid, "the mount has no target"),
			"write --mount=type=%s,target=/path", m.Type)
	}
	if from.Target != "" {
		m.Target = path.Clean(below(r.Dir, from.Target))
		if m.Target == "/" || slices.Contains([]string{"/proc", "/sys", "/dev"}, m.Target) {
			return errors.Remedy(errors.Newf(errors.Invalid, "nothing can be mounted at %s", m.Target),
				"mount it elsewhere")
		}
	}
	if from.Type == instructions.MountTypeCache {
		m.ID = cmp.Or(m.ID, m.Target)
	}
	for _, other := range r.Mounts {
		if m.Target != "" && m.Target == other.Target {
			return errors.Newf(errors.Invalid, "two mounts have the target %s", m.Target)
		}
	}
	r.Mounts = append(r.Mounts, m)
	return nil
}

func isURL(source string) bool {
	return strings.HasPrefix(source, "http://") || strings.HasPrefix(source, "https://")
}

func isGit(source string) bool {
	if strings.HasPrefix(source, "git://") || strings.HasPrefix(source, "git@") || strings.HasPrefix(source, "ssh://") {
		return true
	}
	bare, _, _ := strings.Cut(source, "#")
	bare, _, _ = strings.Cut(bare, "?")
	return isURL(source) && strings.HasSuffix(bare, ".git")
}

func (st *state) copy(c copying, from command) error {
	if c.Dest == "" || len(c.Sources)+len(c.Inline) == 0 {
		return errors.Newf(errors.Invalid, "there is nothing to copy, or nowhere to copy it to")
	}
	c.Dest = below(st.s.config.Dir, c.Dest)
	several := len(c.Sources)+len(c.Inline) > 1
	if several && !strings.HasSuffix(c.Dest, "/") {
		return errors.Remedy(errors.Newf(errors.Invalid, "several files cannot be copied to the one name %.200q",
			c.Dest), "end the destination with a slash")
	}
	for i, source := range c.Sources {
		switch {
		case isGit(source) && c.Add:
			return errors.Remedy(errors.Newf(errors.Unsupported, "ADD of a git repository is not supported"),
				"use RUN git clone")
		case isURL(source) && !c.Add:
			return errors.Remedy(errors.Newf(errors.Invalid, "COPY cannot take a URL"), "use ADD")
		case isURL(source) && several:
			return errors.Remedy(errors.Newf(errors.Unsupported, "ADD of a URL beside other sources is not supported"),
				"use an ADD for each")
		case isURL(source):
		default:
			clean := path.Clean(strings.TrimLeft(source, "/"))
			if clean == ".." || strings.HasPrefix(clean, "../") {
				err := errors.Newf(errors.Invalid, "the source %.200q is outside the build context", source)
				return errors.Remedy(err,
					"copy from within the context, or build with a directory further up as the context")
			}
			if source == "" {
				return errors.Newf(errors.Invalid, "a source is empty")
			}
			if strings.ContainsRune(source, 0) {
				return errors.Newf(errors.Invalid, "the source %.200q contains a NUL byte", source)
			}
			c.Sources[i] = source
		}
	}
	if c.Sum != "" && (len(c.Sources) != 1 || !isURL(c.Sources[0])) {
		return errors.Remedy(errors.Newf(errors.Invalid, "--checksum is for ADD of one URL"), "leave it out")
	}
	if c.Sum != "" && !sumPattern().MatchString(c.Sum) {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.100q is not a checksum", c.Sum),
			"write --checksum=sha256: and 64 hex digits")
	}
	if c.Chown != "" && !userPattern().MatchString(c.Chown) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid owner %.100q", c.Chown),
			"give a name or a number, either followed by ':' and a group")
	}
	if _, err := parseMode(c.Chmod); err != nil {
		return err
	}
	st.add(from, step{copy: &c})
	return nil
}
