package devcontainer

import (
	"maps"
	"regexp"
)

// The forms of properties.
var (
	strings_   = list(text, "strings")
	stringList = either(text, strings_)
	command    = either(text, strings_, table(either(text, strings_), nil))
	port       = shape{form: "a port", kinds: "0", valid: isPort}
	forwarded  = either(port, matching(`a port as "host:3000"`, `^([A-Za-z0-9._-]+:)?\d{1,5}$`))
	size       = matching(`a size such as "8gb"`, `^\d{1,15}([tgmk]b)?$`)
	variables  = table(option, envName.MatchString)
	option     = either(text, flag, shape{form: "a number", kinds: "0"})
	options    = either(text, flag, table(option, nil))

	mount = either(matching(`a mount with a target, such as "type=volume,source=cache,target=/cache"`,
		`(^|,)"?(target|destination|dst)=[^,]`),
		record(map[string]shape{"type": text, "source": text, "target": text, "external": flag}))
	portAttributes = record(map[string]shape{
		"label": text, "protocol": word("http", "https"), "requireLocalPort": flag, "elevateIfNeeded": flag,
		"onAutoForward": word("notify", "openBrowser", "openBrowserOnce", "openPreview", "silent", "ignore"),
	})
	hostRequirements = record(map[string]shape{
		"cpus": integer, "memory": size, "storage": size,
		"gpu": either(flag, word("optional"), record(map[string]shape{"cores": integer, "memory": size})),
	})
)

// isPort reports whether a text is the number of a port.
func isPort(s string) bool {
	_, _, err := Port(s).Split()
	return err == nil
}

// envName matches the names of environment variables. They are written into Dockerfiles.
var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// entryShape is the form of the metadata of an image. Other properties belong to newer tools.
var entryShape = record(entryMembers)

var entryMembers = map[string]shape{
	"id": text, "init": flag, "privileged": flag, "capAdd": strings_, "securityOpt": strings_, "entrypoint": text,
	"mounts": list(mount, "mounts"), "onCreateCommand": command, "updateContentCommand": command,
	"postCreateCommand": command, "postStartCommand": command, "postAttachCommand": command,
	"waitFor": word("initializeCommand", "onCreateCommand", "updateContentCommand", "postCreateCommand",
		"postStartCommand"),
	"containerUser": text, "remoteUser": text, "updateRemoteUserUID": flag,
	"userEnvProbe": word("none", "loginShell", "loginInteractiveShell", "interactiveShell"),
	"containerEnv": variables,
	"remoteEnv":    table(either(option, shape{form: "null", kinds: "n"}), envName.MatchString),
	"forwardPorts": list(forwarded, "ports"), "portsAttributes": table(portAttributes, nil),
	"otherPortsAttributes": portAttributes, "hostRequirements": hostRequirements, "overrideCommand": flag,
	"shutdownAction": word("none", "stopContainer", "stopCompose"), "customizations": object,
}

// configShape is the form of a devcontainer.json.
var configShape = record(with(entryMembers, []string{"id", "entrypoint"}, map[string]shape{
	"$schema": text, "name": text, "image": text, "dockerFile": text, "context": text,
	"build": record(map[string]shape{
		"dockerfile": text, "context": text, "args": table(option, nil), "target": text, "cacheFrom": stringList,
		"options": strings_,
	}),
	"features": table(options, nil), "overrideFeatureInstallOrder": strings_,
	"workspaceFolder": text, "workspaceMount": text, "initializeCommand": command, "runArgs": strings_,
	"appPort":           either(port, text, list(either(port, text), "ports")),
	"dockerComposeFile": stringList, "service": text, "runServices": strings_,
	"secrets": table(record(map[string]shape{"description": text, "documentationUrl": text}),
		regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`).MatchString),
}))

// featureShape is the form of a devcontainer-feature.json.
var featureShape = record(with(entryMembers, nil, map[string]shape{
	"id": text, "version": text, "name": text, "description": text,
	"documentationURL": text, "options": table(record(map[string]shape{
		"type": word("string", "boolean"), "default": option, "enum": strings_, "proposals": strings_,
		"description": text,
	}), nil),
	"installsAfter": strings_, "dependsOn": table(options, nil), "legacyIds": strings_, "currentId": text,
	"deprecated": flag,
}))

// with returns a table of members without some names and with others.
func with(members map[string]shape, without []string, more map[string]shape) map[string]shape {
	all := maps.Clone(members)
	for _, name := range without {
		delete(all, name)
	}
	maps.Copy(all, more)
	return all
}
