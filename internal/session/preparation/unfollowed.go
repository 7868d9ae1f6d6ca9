package preparation

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// describedScript prints the paths of dev container configurations in a directory, and after an empty line the
// beginning of its harvest.json: directory.
const describedScript = `cd "$1"
for f in .devcontainer/devcontainer.json .devcontainer.json .devcontainer/*/devcontainer.json; do
	if [ -f "$f" ]; then echo "$f"; fi
done
echo
if [ -f harvest.json ]; then head -c 65536 harvest.json; fi`

// unfollowed reports that the first repository describes a dev container which the session does not follow, since it
// has no image of the repository. The description cannot be followed in time: its image takes minutes to build.
func unfollowed(ctx context.Context, p *work) {
	repo := p.Repos[0]
	if p.Images == nil || p.container != nil || p.Image != nil || !p.Fresh || p.s.Continues ||
		p.s.Request.Image != p.s.Image {
		return
	}
	out, err := p.box().Output(ctx, describedScript, repo.Dir)
	if err != nil {
		logf.Warnf(ctx, "look for a dev container: %v", err)
		return
	}
	names, text, _ := strings.Cut("\n"+out, "\n\n")
	if all := devcontainer.Find(strings.Fields(names)); len(all) > 0 && !ignores(text) {
		remedy := "harvest repo add builds an image by it, of a repository with an address"
		if repo.URL != "" {
			remedy = "harvest repo add " + repo.URL + " builds an image by it, and later sessions start from that"
		}
		p.notice(records.NoticeUnfollowed, all[0].Path+" is not followed, because there is no image of this "+
			"repository: "+remedy)
	}
}

// ignores reports whether a harvest.json says that no dev container is followed.
func ignores(text string) bool {
	var file struct {
		DevContainer *string `json:"devcontainer"`
	}
	err := json.Unmarshal([]byte(text), &file)
	return err == nil && file.DevContainer != nil && *file.DevContainer == ""
}
