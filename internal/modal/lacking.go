package modal

import "strings"

// lacks explains why groups of methods are not served, by name prefix. The first match counts.
var lacks = []struct{ begins, sentence string }{
	{"Function", "functions are not run here: Harvest serves sandboxes. Run the code in a sandbox, or on Modal"},
	{"Class", "classes are not run here: Harvest serves sandboxes. Run the code in a sandbox, or on Modal"},
	{"Map", "functions are not run here: Harvest serves sandboxes. Run the code in a sandbox, or on Modal"},
	{"Attempt", "functions are not run here: Harvest serves sandboxes. Run the code in a sandbox, or on Modal"},
	{"TaskSetOutboundPolicy", "headers of outbound requests are not replaced here. Give the sandbox the secret"},
	{"Volume", "this is done to volumes by sandboxes that mount them, or with: harvest volume"},
	{"SharedVolume", "there are no network file systems here. Use a volume"},
	{"App", "apps group sandboxes here: they have neither functions nor versions to return to"},
	{"Environment", "environments have neither roles nor budgets here. Use accounts: harvest key create --account"},
	{"Workspace", "there are no workspaces here; accounts are made with: harvest key create --account"},
	{"Proxy", "there are no proxies here beside this machine's own address"},
}

// lacking is the message for a call of a method that does not exist.
func lacking(method string) string {
	name := method[strings.LastIndexByte(method, '/')+1:]
	for _, l := range lacks {
		if strings.HasPrefix(name, l.begins) {
			return name + ": " + l.sentence
		}
	}
	return name + ": Harvest does not serve this part of Modal. See docs/modal.md"
}
