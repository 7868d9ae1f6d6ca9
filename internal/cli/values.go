package cli

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

// SizeFlag is a number of bytes, such as "2GiB".
type SizeFlag int64

// String returns "": help shows no default.
func (s *SizeFlag) String() string { return "" }

// Type is the name of the value in help.
func (s *SizeFlag) Type() string { return "size" }

// Set parses the value.
func (s *SizeFlag) Set(text string) error {
	n, err := units.RAMInBytes(text)
	if err != nil || n <= 0 {
		return errors.Newf(errors.Invalid, "give a size such as 512MiB or 2GiB")
	}
	*s = SizeFlag(n)
	return nil
}

// TimeFlag is a time span, such as "90s" or "2h"; a plain number is seconds. It rejects 0, because its meaning
// would differ between flags, and leaving out the flag is clearer.
type TimeFlag time.Duration

// String returns "": help shows no default.
func (d *TimeFlag) String() string { return "" }

// Type is the name of the value in help.
func (d *TimeFlag) Type() string { return "time" }

// Set parses the value.
func (d *TimeFlag) Set(text string) error {
	v, err := time.ParseDuration(text)
	if err != nil {
		var n float64
		if n, err = strconv.ParseFloat(text, 64); err == nil && n < time.Duration(1<<62).Seconds() {
			v = time.Duration(n * float64(time.Second))
		}
	}
	if err != nil || v <= 0 {
		return errors.Newf(errors.Invalid,
			"give a duration above 0, such as 90s or 2h, or omit the flag for the default")
	}
	*d = TimeFlag(v)
	return nil
}

// Seconds returns the time span in seconds, 0 if the flag was not given.
func (d *TimeFlag) Seconds() float64 { return time.Duration(*d).Seconds() }

// Environment parses --env-file and -e; later values win.
func (c *CLI) Environment(file string, pairs []string) (map[string]string, error) {
	env := map[string]string{}
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, errors.Remedy(errors.Explainf(err, errors.Invalid, "cannot read the file %s", file),
				"give --env-file a readable file")
		}
		defer f.Close()
		read, err := secret.ParseEnv(f)
		if err != nil {
			return nil, errors.Explainf(err, errors.Invalid, "file %s: invalid list of variables: %s", file,
				errors.Message(err))
		}
		env = read
	}
	for _, pair := range pairs {
		name, value, set := strings.Cut(pair, "=")
		if name == "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "-e %q: no name", pair),
				"give -e NAME=VALUE, or -e NAME to forward a variable")
		}
		if !set {
			if value, set = c.LookupEnv(name); !set {
				continue
			}
		}
		env[name] = value
	}
	return env, nil
}

// mounts parses -v VOLUME:/path[:ro].
func mounts(texts []string) ([]api.Mount, error) {
	var all []api.Mount
	for _, text := range texts {
		parts := strings.Split(text, ":")
		if len(parts) == 3 && (parts[2] == "ro" || parts[2] == "rw") || len(parts) == 2 {
			all = append(all, api.Mount{Name: parts[0], Path: parts[1], ReadOnly: len(parts) == 3 && parts[2] == "ro"})
			continue
		}
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid -v %q: want VOLUME:/path or VOLUME:/path:ro",
			text), "name a volume and its mount point, such as -v data:/data")
	}
	return all, nil
}

// parseS3 parses --s3 s3://BUCKET/PREFIX:/path[:init][:sync][:every=TIME] or :mount[:ro], and s3:/path for the
// server's bucket. It returns nil for "".
func parseS3(text, secret string) (*api.S3, error) {
	if text == "" {
		if secret != "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "--s3-secret needs --s3"),
				"give --s3, or omit --s3-secret")
		}
		return nil, nil
	}
	s := api.S3{Place: api.Place{Secret: secret}}
	rest, ok := strings.CutPrefix(text, "s3:")
	for more := ok; more; {
		if rest, more = strings.CutSuffix(rest, ":init"); more {
			s.Init = true
			continue
		}
		if rest, more = strings.CutSuffix(rest, ":sync"); more {
			s.SyncOnTerminate = true
			continue
		}
		if rest, more = strings.CutSuffix(rest, ":mount"); more {
			s.Mount = true
			continue
		}
		if rest, more = strings.CutSuffix(rest, ":ro"); more {
			s.ReadOnly = true
			continue
		}
		// A ":every=" in front of a "/" is part of the prefix.
		if at := strings.LastIndex(rest, ":every="); at >= 0 && !strings.Contains(rest[at:], "/") {
			every, err := time.ParseDuration(rest[at+len(":every="):])
			if err != nil || every <= 0 {
				return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid --s3 %.300q: every has no interval",
					text), "give an interval, such as s3://my-bucket/work:/work:every=5m")
			}
			rest, s.SyncEverySeconds, more = rest[:at], every.Seconds(), true
		}
	}
	if place, named := strings.CutPrefix(rest, "//"); named {
		at := strings.LastIndex(place, ":/") // a prefix may contain colons
		ok = ok && at > 0
		if ok {
			s.Bucket, s.Prefix, _ = strings.Cut(place[:at], "/")
			rest = place[at+1:]
		}
	}
	s.MountPath = rest
	if !ok || !strings.HasPrefix(rest, "/") || strings.HasPrefix(rest, "//") {
		return nil, errors.Remedy(errors.Newf(errors.Invalid,
			"invalid --s3 %.300q: want s3://BUCKET/PREFIX:/path[:init][:sync][:every=TIME] or …:/path:mount[:ro]",
			text),
			"give s3://my-bucket/work:/work:init:sync, or s3:/work:init:sync for the server's bucket and a volume at "+
				"/work")
	}
	return &s, nil
}

// Tags parses KEY=VALUE.
func Tags(texts []string) (map[string]string, error) {
	all := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid --tag %q: want KEY=VALUE", text),
				"give --tag team=search")
		}
		all[key] = value
	}
	return all, nil
}

// ParseNetwork parses the values of --network. The mode is "" without values.
func ParseNetwork(texts []string) (api.Network, error) {
	var n api.Network
	for _, text := range texts {
		word, list, has := strings.Cut(text, "=")
		names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
		switch {
		case has && len(names) > 0 && word == "allow":
			n.Allow = append(n.Allow, names...)
		case has && len(names) > 0 && word == "deny":
			n.Deny = append(n.Deny, names...)
		case !has && (word == "none" || word == "default"):
			if n.Mode != "" && n.Mode != word {
				return n, errors.Remedy(errors.Newf(errors.Invalid, "--network: none and default exclude each other"),
					"give one of them")
			}
			n.Mode = word
		default:
			return n, errors.Remedy(errors.Newf(errors.Invalid, "invalid --network %.100q", text),
				"give none, default, allow=NAME,… or deny=NAME,…")
		}
	}
	switch {
	case n.Mode == "" && len(n.Allow) > 0:
		n.Mode = "allow"
	case n.Mode == "" && len(n.Deny) > 0:
		n.Mode = "default"
	}
	return n, nil
}
