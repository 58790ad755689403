"""LunarLander-v3 with discrete actions as a twin: Box2D's physics as pure array functions.

`twin` holds the record, `episode` the rules of the game, `step` one step of Box2D's pipeline. The
parts of a step are in files of their own: `joints`, `contacts` (where a leg touches the ground),
`contact_solver` (what that does), `touch` (what is remembered) and `impact`. `craft` and `terrain`
describe the bodies, `engines` and `noise` what drives them.
"""
