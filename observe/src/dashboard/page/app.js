// The page's start: every section is set up empty, then the connection is made and fills them.

import * as bound from './bound.js';
import * as charts from './charts.js';
import * as curves from './curves.js';
import * as group from './group.js';
import * as groups from './groups.js';
import * as header from './header.js';
import * as pipeline from './pipeline.js';
import * as lists from './lists.js';
import * as workers from './workers.js';
import { connect } from './live.js';

for (const part of [header, pipeline, workers, charts, bound, curves, groups, group, lists]) part.start();
void connect();
